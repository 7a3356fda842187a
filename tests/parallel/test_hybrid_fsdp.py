"""FSDP beside pp and tp: equal to one process, in shards, with the bytes and memory on paper."""

import re
from collections import Counter
from functools import partial

import numpy as np
import pytest
import test_hybrid
from cases import expected
from measure import rings_only
from test_hybrid import MESHES, OPTIMIZERS, build, microbatches, named, on
from test_matrix import CELLS

from minipar.autograd import no_grad
from minipar.comm import Cluster
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.optim import SGD, AdamW
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
check = partial(test_hybrid.check, data_parallel="fsdp")
fsdp = partial(on, data_parallel="fsdp")


@worlds(8, mpi=())
@pytest.mark.parametrize("mesh", MESHES, ids=named)
def test_every_mesh_of_8_ranks_equals_one_process(world, mesh):
    check(world, mesh, "tied", 2, "adamw", sequence_parallel=mesh["tp"] > 1)


@pytest.mark.slow
@worlds(8, mpi=(8,))
@pytest.mark.parametrize("mesh", MESHES, ids=named)
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
        psi = sum(map(sum, sizes.values()))
        assert expected <= 3 * m * psi * 4 * (dp - 1) / dp + 4 * m * 3 * len(sizes) * 2
        if p > 1:
            words = sizes["embed" if here("pp") == 0 else "head"][0]
            assert sent["pp", False] == bytes_of_shared(words, dp, p)[here("dp"), here("pp")]
        found = {kind: ledger.peak_of[kind] for kind in
                 ("parameters", "gradients", "optimizer states", "communication")}
        assert found == memory_of_row(row, *uses, sizes, dp, here("dp"))
        assert ledger.live_of["communication"] == ledger.live_of["activations"] == 0
    on_paper = [sizes_on(mesh, CONFIG, rank) for rank in range(p)]
    Cluster(p * mesh["dp"] * mesh["tp"]).run(body)
