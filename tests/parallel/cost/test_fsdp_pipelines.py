"""FSDP beside pp and tp: bytes over dp and memory by kind are those on paper."""

from collections import Counter

import pytest

from minipar.comm import Cluster
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.nn.chain import chain
from minipar.optim import AdamW
from minipar.parallel.pipeline.cut_points import cut_evenly
from minipar.parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from minipar.parallel.tensor.parallelize import parallelize
from tests.parallel.test_hybrid import microbatches, on
from tests.support.measured_step import rings_only
from tests.support.rows_on_paper import (
    bytes_of_shared,
    bytes_over_dp,
    memory_of_row,
    path_of,
)

MESH = {"pp": 2, "dp": 2, "tp": 2}


def sizes_on(mesh, config, rank):
    """Of one rank of pp of a tied GPT: its stage's units in the order of forward, those whose
    weights backward needs, in its order, and the sizes of their runs.
    """
    def body(comm):
        model = GPT(config)
        if mesh["tp"] > 1:
            parallelize(model, comm)
        parts = chain(model)
        cuts = [0, *cut_evenly([part.num_parameters() for part in parts], mesh["pp"]), len(parts)]
        forward, of_units = [], {}
        for part in parts[cuts[rank]:cuts[rank + 1]]:
            unit = "embed" if part.name == "head" and mesh["pp"] == 1 else part.name    # tied
            of_units.setdefault(unit, []).extend(part.parameters())
            forward.append(unit)
        sizes = {}
        for unit, own in of_units.items():
            wte = [p for p in own if p is model.wte.weight][:mesh["pp"]]    # shared, if there is pp
            rest = [p for p in dict.fromkeys(own) if p not in wte]
            runs = [[p for p in rest if ("tp" in p.replicated) == whole] for whole in (False, True)]
            if mesh["pp"] == 1:
                runs, wte = [[*wte, *runs[0]], runs[1]], []
            sizes[unit] = [sum(p.size for p in run) for run in (wte, *runs) if run]
        backward = forward[::-1]
        if rank == 0:
            backward.pop()                  # ids have no gradient
        return forward, backward, sizes
    return Cluster(mesh["tp"]).run(body)[0]


CONFIG = GPTConfig(11, context=8, num_layers=4, num_heads=2, width=10)
ON_PAPER = [({"pp": 2, "dp": 2, "tp": 1}, "1f1b"), ({"pp": 2, "dp": 3, "tp": 1}, "zb_h1"),
            ({"pp": 1, "dp": 2, "tp": 2}, "1f1b"), (MESH, "gpipe"), (MESH, "zb_h1")]


def trained(comm, mesh, schedule, m, ledger):
    """A strategy after two steps; the ledger and the trace are of the second."""
    with ledger.recording():
        make = on(mesh, schedule=schedule, data_parallel="fsdp")
        strategy = make(GPT(CONFIG).initialize(0), comm)
        optimizer = AdamW(strategy.slabs, lr=0.01)
        for step in range(2):
            ledger.forget_peaks()
            comm.start_trace()
            optimizer.zero_grad()
            strategy.forward_backward(microbatches(strategy, "tied", step, m), 3, step)
            strategy.step(optimizer)
            trace = comm.stop_trace()
    return strategy, trace


@pytest.mark.parametrize("mesh, schedule", ON_PAPER)
@pytest.mark.one_in(3)
def test_bytes_and_memory_are_those_on_paper(mesh, schedule, monkeypatch):
    rings_only(monkeypatch)
    m, p = 4, mesh["pp"]

    def body(comm):
        ledger = Ledger(now=comm.now)
        strategy, trace = trained(comm, mesh, schedule, m, ledger)
        here, dp = strategy.mesh.coordinate, mesh["dp"]
        forward, backward, sizes = (of[here("tp")] for of in zip(*on_paper[here("pp")]))
        row = make_schedule(schedule, p, m)[0][here("pp")]
        uses = {here("pp"): forward}, {here("pp"): backward}
        sent = Counter()
        for message in trace.select():
            where = strategy.mesh.coordinates_of(message.dest)
            (axis,) = (axis for axis in mesh if where[axis] != here(axis))
            sent[axis, message.label[:1].isdigit()] += message.num_bytes    # an action's is "1F0"
        expected = bytes_over_dp(row, *uses, sizes, dp)[here("dp")]
        assert sent["dp", False] == expected > 0
        if p > 1:
            words = sizes["embed" if here("pp") == 0 else "head"][0]
            assert sent["pp", False] == bytes_of_shared(words, dp, p)[here("dp"), here("pp")]
        found = {kind: ledger.peak_of[kind] for kind in
                 ("parameters", "gradients", "optimizer states", "communication")}
        assert found == memory_of_row(row, *uses, sizes, dp, here("dp"))
        assert ledger.live_of["communication"] == ledger.live_of["activations"] == 0
    on_paper = [sizes_on(mesh, CONFIG, rank) for rank in range(p)]
    Cluster(p * mesh["dp"] * mesh["tp"]).run(body)


def test_what_a_row_gathers_by_hand():
    uses = {0: ["a", "b", "c"]}, {0: ["c", "b"]}
    row = make_schedule("1f1b", 1, 2)[0][0]
    assert " ".join(map(str, row)) == "0F0 0B0 0F1 0B1"
    assert path_of(row, *uses) == ["a", "b", "c", "b"] * 2
    sizes = {"a": [4], "b": [8, 12], "c": [40]}
    # of a b c b: all but the last, which is still there; then a b c anew but for b: 44 and 24
    gathered, reduced = 64 + 44, 2 * 64
    assert bytes_over_dp(row, *uses, sizes, 4, 1) == [(gathered + reduced) * 3 // 4] * 4
    memory = memory_of_row(row, *uses, sizes, 4, 0, 1)
    assert memory == {"parameters": 16, "gradients": 16 + 40, "optimizer states": 32,
                      "communication": 60}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_never_more_than_three_stages_a_microbatch(schedule):
    """And close to it, if a stage has many units: 3 m Ψ (dp - 1)/dp elements of each stage."""
    m, dp, num_units = 8, 4, 40
    for rank, row in enumerate(make_schedule(schedule, 2, m)[0]):
        stages = {action.stage for action in row}
        forward = {s: [f"{s}.{i}" for i in range(num_units)] for s in stages}
        backward = {s: units[::-1] for s, units in forward.items()}
        sizes = {unit: [8, 4] for units in forward.values() for unit in units}
        forwards = [action.stage for action in row if action.kind == "F"]   # m of each, mostly
        bound = 3 * sum(12 * num_units for _ in forwards) * 4 * (dp - 1) // dp
        assert all(0.95 * bound < sent <= bound
                   for sent in bytes_over_dp(row, forward, backward, sizes, dp)), rank
