"""FSDP beside pp and tp: equal to one process, in shards, with the bytes and memory on paper."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import test_hybrid
from measure import rings_only
from test_hybrid import MESHES, OPTIMIZERS, build, microbatches, named, on

from minipar.autograd import no_grad
from minipar.comm import Cluster
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.optim import SGD, AdamW
from minipar.parallel.data import ranks_that_differ
from minipar.parallel.parallelize import parallelize
from minipar.parallel.pipeline import NAMES, make_schedule
from minipar.parallel.pipeline.sharded_cost import (
    bytes_of_shared,
    bytes_over_dp,
    memory_of_row,
    path_of,
)
from minipar.parallel.pipeline.stages import chain, cut_evenly
from minipar.parallel.strategy import accumulate
from minipar.testing import worlds

MESH = {"pp": 2, "dp": 2, "tp": 2}
CUT = [mesh for mesh in MESHES if mesh["dp"] > 1]
check = partial(test_hybrid.check, data_parallel="fsdp")
fsdp = partial(on, data_parallel="fsdp")


@worlds(8, mpi=())
@pytest.mark.parametrize("mesh", CUT, ids=named)
def test_every_mesh_of_8_ranks_equals_one_process(world, mesh):
    check(world, mesh, "tied", 2, "adamw", sequence_parallel=mesh["tp"] > 1)


@pytest.mark.slow
@worlds(8, mpi=(8,))
@pytest.mark.parametrize("mesh", [*CUT, {"pp": 2, "dp": 1, "tp": 4}], ids=named)
@pytest.mark.parametrize("name", ["tied", "untied"])
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
def test_the_whole_product(world, mesh, name, sequence):
    if sequence and mesh["tp"] == 1:
        pytest.skip("one rank of tp has no sequence to split")
    for optimizer in OPTIMIZERS:
        check(world, mesh, name, 3, optimizer, sequence_parallel=sequence)


@pytest.mark.slow
@worlds(8, mpi=(8,))
@pytest.mark.parametrize("schedule", NAMES)
@pytest.mark.parametrize("parts", [1, 3, 6])
def test_every_schedule_with_any_number_of_microbatches(world, schedule, parts):
    if schedule == "interleaved" and parts % 2:
        pytest.skip("interleaving takes a multiple of pp")
    for mesh in (MESH, {"pp": 2, "dp": 4, "tp": 1}):
        check(world, mesh, "tied", parts, "sgd", schedule=schedule)


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("mesh", [{"pp": 2, "dp": 2}, {"dp": 2, "tp": 2}], ids=named)
def test_two_axes(world, mesh):
    check(world, mesh, "tied", 3)


@worlds(8, mpi=())
@pytest.mark.parametrize("schedule", NAMES)
def test_every_schedule(world, schedule):
    check(world, MESH, "tied", 4, schedule=schedule)


@worlds(12, mpi=())
def test_uneven_pieces(world):
    """Three do not divide the words, the rows of a microbatch or the elements of a run."""
    check(world, {"pp": 2, "dp": 3, "tp": 2}, "mlp")
    check(world, {"pp": 4, "dp": 3, "tp": 1}, "three heads")


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
        forward, sizes = [], {}
        for part in parts[cuts[rank]:cuts[rank + 1]]:
            wte = [model.wte.weight] if model.wte in part.modules else []
            rest = [p for p in part.parameters() if p is not model.wte.weight]
            runs = [[p for p in rest if ("tp" in p.replicated) == whole] for whole in (False, True)]
            here = {part.name: runs, "wte": [wte]} if mesh["pp"] == 1 else {part.name: [wte, *runs]}
            if part.name == "embed":
                here = dict(reversed(here.items()))         # words first, then positions
            forward += [unit for unit, of in here.items() if any(of)]
            sizes |= {unit: [sum(p.size for p in run) for run in of if run]
                      for unit, of in here.items() if any(of)}
        backward = forward[::-1]
        while rank == 0 and backward[-1] in ("embed", "wte"):
            backward.pop()                  # ids have no gradient
        return forward, backward, sizes
    return Cluster(mesh["tp"]).run(body)[0]


CONFIG = GPTConfig(11, context=8, num_layers=4, num_heads=2, width=10)
ON_PAPER = [({"pp": 2, "dp": 2, "tp": 1}, "1f1b"), ({"pp": 2, "dp": 3, "tp": 1}, "zb_h1"),
            ({"pp": 1, "dp": 2, "tp": 2}, "1f1b"), (MESH, "gpipe"), (MESH, "zb_h1")]


def trained(comm, mesh, schedule, m, ledger):
    """A strategy after two steps; the ledger and the trace are of the second."""
    with ledger.recording():
        strategy = fsdp(mesh, schedule=schedule)(GPT(CONFIG).initialize(0), comm)
        optimizer = AdamW(strategy.slabs, lr=0.01)
        for step in range(2):
            ledger.forget_peaks()
            comm.start_trace()
            optimizer.zero_grad()
            accumulate(strategy, microbatches(strategy, "tied", step, m), 3, step)
            strategy.step(optimizer)
            trace = comm.stop_trace()
    return strategy, trace


@pytest.mark.parametrize("mesh, schedule", ON_PAPER)
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


@pytest.mark.parametrize("schedule", NAMES)
def test_never_more_than_three_stages_a_microbatch(schedule):
    """And close to it, if a stage has many units: 3 m Ψ (dp - 1)/dp elements of each stage."""
    m, dp, num_units = 8, 4, 40
    for rank, row in enumerate(make_schedule(schedule, 2, m)[0]):
        stages = {action.stage for action in row}
        forward = {s: [f"{s}.{i}" for i in range(num_units)] for s in stages}
        backward = {s: units[::-1] for s, units in forward.items()}
        sizes = {unit: [8, 4] for units in forward.values() for unit in units}
        bound = 3 * m * sum(map(sum, sizes.values())) * 4 * (dp - 1) // dp
        assert all(0.95 * bound < sent <= bound
                   for sent in bytes_over_dp(row, forward, backward, sizes, dp)), rank


def test_a_batch_is_reduced_once_and_has_no_room_for_more():
    def body(comm):
        strategy = fsdp(MESH)(build("tied"), comm)
        batches = microbatches(strategy, "tied", 0, 2)
        strategy.run(batches, 10.0, 3)
        with pytest.raises(ValueError, match="reduced already, and would be again"):
            strategy.run(batches, 10.0, 3)
        with pytest.raises(ValueError, match="keeps no whole gradient"), strategy.no_sync():
            pass
        for slab in strategy.slabs:
            slab.zero_grad()
            assert not slab.complete_grad().any()
        strategy.run(batches, 10.0, 3)
    Cluster(8).run(body)


@pytest.mark.parametrize("mesh", MESHES, ids=named)
def test_gradients_of_1_have_the_norm_of_the_number_of_parameters(mesh):
    norm = test_hybrid.MODELS["tied"]().num_parameters()**0.5

    def body(comm):
        strategy = fsdp(mesh)(build("tied"), comm)
        for slab in strategy.slabs:
            for run in slab.runs:
                run.shard.add(np.ones_like(run.shard.grad))
        assert strategy.clip_grad_norm(1.0) == pytest.approx(norm, rel=1e-14)
        assert strategy.clip_grad_norm(1.0) == pytest.approx(1, rel=1e-5)
    Cluster(8).run(body)


def step(strategy, optimizer, number):
    optimizer.zero_grad()
    loss = accumulate(strategy, microbatches(strategy, "tied", number, 2), 3, number)
    strategy.clip_grad_norm(0.1)
    strategy.step(optimizer)
    return loss


def test_what_was_saved_goes_on_elsewhere():
    """Whole parameters and states, saved on one mesh, loaded on others, with FSDP and without."""
    def begin(comm, mesh, name, saved=None):
        model = build("tied")
        if saved is not None:
            model.load_state_dict(saved[0])
        strategy = on(mesh, data_parallel=name)(model, comm)
        optimizer = AdamW(strategy.slabs, lr=0.01)
        if saved is not None:
            optimizer.load_state_dict(saved[1], 2)
        return strategy, optimizer

    def first(comm):
        strategy, optimizer = begin(comm, MESH, "fsdp")
        for number in range(2):
            step(strategy, optimizer, number)
        saved = strategy.state_dict(), optimizer.state_dict()
        return saved, [step(strategy, optimizer, number) for number in (2, 3)]

    def then(comm, mesh, name, saved):
        strategy, optimizer = begin(comm, mesh, name, saved)
        return [step(strategy, optimizer, number) for number in (2, 3)]
    saved, losses = Cluster(8).run(first)[0][5]
    assert saved[0].keys() == build("tied").state_dict().keys()
    for mesh, name in (({"pp": 1, "dp": 4, "tp": 2}, "fsdp"), ({"pp": 4, "dp": 2}, "fsdp"),
                       ({"dp": 1, "tp": 2}, "ddp"), ({"pp": 2, "dp": 3}, "zero1")):
        ranks = int(np.prod([*mesh.values()]))
        for found in Cluster(ranks).run(partial(then, mesh=mesh, name=name, saved=saved))[0]:
            np.testing.assert_allclose(found, losses, rtol=1e-10)


@worlds(4, mpi=(4,))
def test_a_step_is_seen_without_gradients(world):
    """Weights that were gathered outside of a step are not those after the next."""
    ids = np.arange(8).reshape(1, 8)

    def body(comm):
        model = build("untied")
        strategy = fsdp({"dp": 2, "tp": 2})(model, comm)
        optimizer = SGD(strategy.slabs, lr=0.3)
        with no_grad():
            model.logits(ids)
            before = model.logits(ids).data
        step(strategy, optimizer, 0)
        with no_grad():
            after = model.logits(ids).data
        assert np.abs(after - before).max() > 1e-3
        with pytest.raises(RuntimeError, match="gradients would be lost"):
            model.logits(ids)
        whole = build("untied")
        whole.load_state_dict(strategy.state_dict())
        with no_grad():
            np.testing.assert_allclose(after, whole.logits(ids).data, rtol=1e-10)
    world.run(body)


def test_tied_weights_stay_the_same_to_the_last_bit():
    def body(comm):
        strategy = fsdp({"pp": 2, "dp": 3, "tp": 2})(build("tied"), comm)
        optimizer = AdamW(strategy.slabs, lr=0.01)
        for number in range(3):
            step(strategy, optimizer, number)
        (here, slab), = strategy.pipeline.shared
        assert not ranks_that_differ(here, slab.data.tobytes()) and slab.data.size
    Cluster(12).run(body)
