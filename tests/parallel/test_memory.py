"""The ledger's peak by kind equals the prediction; weak references show what is freed, and when."""

import weakref
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from minipar.autograd import no_grad
from minipar.backend import observing_allocations
from minipar.comm import Cluster
from minipar.nn import GPT
from minipar.optim import SGD
from minipar.parallel.cost.data_parallel import memory_per_rank, units_of
from minipar.parallel.registry import GRADIENTS, PARAMETERS, STATES, STRATEGIES
from minipar.testing import worlds
from tests.support.cases import ALL, MODELS, ONE_PROCESS, Case, train
from tests.support.measured_step import CONFIGS, recorded, step

NAMES = (*sorted(ONE_PROCESS), "fsdp no prefetch", "fsdp kept", "fsdp hybrid")


def predicted(name: str, model: GPT, p: int, rank: int, buckets: list[int]) -> dict[str, int]:
    if name.startswith("fsdp"):
        units, uses = units_of(model)
        shard = 2 if name == "fsdp hybrid" and p % 2 == 0 else None
        return memory_per_rank("fsdp", units, p, rank, uses=uses, shard=shard,
                               kept=name == "fsdp kept")
    if name == "zero3":
        sizes = {name: p.size for name, p in model.named_parameters()}
        used, number = [*sizes, "wte.weight"], {key: i for i, key in enumerate(sizes)}
        path = [*used, *(key for key in used[2:][::-1] if key.endswith("weight"))]
        together = max(sum(sizes[key] for key in {*pair}) for pair in pairwise(path))
        return memory_per_rank("zero3", [*sizes.values()], p, rank, gathered=together,
                               uses=[number[key] for key in used])
    # Buckets are numbered from the head; the tied embedding is in the last, used at both ends.
    uses = [len(buckets) - 1, *reversed(range(len(buckets)))]
    uses = [*uses[1:], uses[0]]
    return memory_per_rank(name, buckets or [model.num_parameters()], p, rank, uses=uses)


@worlds(1, 3, 4, mpi=(), slow=(2,), slow_mpi=(4,))      # a rank's ledger does not know its world
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(2)
def test_the_peak_of_every_kind(world, name, config):
    def body(comm):
        found = recorded(comm, name, CONFIGS[config])
        expected = predicted(name, GPT(CONFIGS[config]), comm.size, comm.rank, found.buckets)
        assert {kind: found.peak_of[kind] for kind in expected} == expected
        assert found.peak_of["activations"] > 0
        assert found.left["activations"] == found.left["communication"] == 0
    world.run(body)


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.one_in(2)
def test_the_staircase(p):
    """16Ψ, 8Ψ + 8Ψ/p, 4Ψ + 12Ψ/p, 16Ψ/p bytes in float32 with Adam; beside it what is in use."""
    psi = GPT(CONFIGS["divides"]).num_parameters()
    costs = {name: entry.cost for name, entry in STRATEGIES.items() if entry.cost}
    for name, cost in costs.items():
        expected = sum(size * psi // (p if kind in cost.sharded else 1)
                       for kind, size in {STATES: 8, GRADIENTS: 4, PARAMETERS: 4}.items())

        def body(comm, name=name, expected=expected):
            assert recorded(comm, name, CONFIGS["divides"]).left.total() == expected
        Cluster(p).run(body)


@pytest.mark.parametrize("name", ["fsdp", "fsdp no prefetch"])
def test_fsdp_peaks_at_once(name):
    """Two gathered units and the whole gradients meet: the sum of the kinds is their peak."""
    def body(comm):
        expected = predicted(name, GPT(CONFIGS["divides"]), comm.size, comm.rank, [])
        assert recorded(comm, name, CONFIGS["divides"]).peak == sum(expected.values())
    Cluster(3).run(body)


class Watcher:
    """Weak references to the arrays of one kind; how many of them were alive at any time."""

    def __init__(self, kind: str):
        self.kind, self.most, self.num_seen = kind, 0, 0
        self.alive: list[weakref.ref] = []

    def __call__(self, kind: str, array: np.ndarray) -> None:
        """More are alive only after one is made, so it is enough to count then."""
        if kind == self.kind:
            self.alive = [ref for ref in self.alive if ref() is not None] + [weakref.ref(array)]
            self.most = max(self.most, len(self.alive))
            self.num_seen += 1

    def num_alive(self) -> int:
        return sum(ref() is not None for ref in self.alive)


@worlds(2, 3, mpi=(), slow=(1,), slow_mpi=(3,))
@pytest.mark.parametrize("model", ["gpt tied", "gpt untied", "gpt dropout", "mlp"])
@pytest.mark.parametrize("name", ["fsdp", "fsdp no prefetch"])
@pytest.mark.one_in(2)
def test_at_most_two_gathered_units_are_alive(world, name, model):
    def body(comm):
        watcher = Watcher("communication")
        with observing_allocations(watcher):
            train(comm, name, Case(model, parts=(4, 3, 3)))
        assert watcher.most == 2 and watcher.num_seen > 10 and watcher.num_alive() == 0
    world.run(body)


@worlds(2, mpi=())
def test_without_gradients_too(world):
    def body(comm):
        model = MODELS["gpt tied"]().initialize(0, np.float64)
        ALL["fsdp"](model, comm)
        watcher = Watcher("communication")
        with observing_allocations(watcher), no_grad():
            model.logits(np.zeros((1, 3), int))
        assert watcher.most <= 2 and watcher.num_seen >= 4
    world.run(body)


@worlds(2, 3, mpi=(2,))
def test_zero3_holds_no_weight_beyond_its_use(world):
    """A weight and a bias at a time; what is saved for backward is gathered again."""
    def body(comm):
        watcher = Watcher("communication")
        with observing_allocations(watcher):
            train(comm, "zero3", Case("gpt tied"))
        assert watcher.most == 2 and watcher.num_alive() == 0
    world.run(body)


@worlds(2, 3, mpi=(2,))
@pytest.mark.parametrize("tied", [False, True])
def test_zero2_frees_the_gradient_of_a_bucket(world, tied):
    """One bucket's at a time; with tied weights that of the embedding waits beside it."""
    def body(comm):
        model = GPT(replace(CONFIGS["uneven"], tied=tied)).initialize(0)
        strategy = ALL["zero2"](model, comm)
        optimizer, watcher = SGD(strategy.slabs), Watcher("gradients")
        with observing_allocations(watcher):
            step(comm, strategy, optimizer, k=3)
        assert watcher.num_seen == 3 * len(strategy.flats) and len(strategy.flats) > 3
        assert watcher.most == 1 + tied and watcher.num_alive() == 0
    world.run(body)
