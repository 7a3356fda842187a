"""Few numbers, few bits: each wire equals its definition in one process, in its bytes, in DDP."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.optim import SGD
from minipar.parallel.compare_ranks import ranks_that_differ
from minipar.parallel.cost.data_parallel import all_reduce_elements, chunk_lengths
from minipar.parallel.registry import make_strategy
from minipar.parallel.wire_formats.gradient_compression.onebit_adam import OneBitAdam
from minipar.parallel.wire_formats.gradient_compression.powersgd import PowerSGD
from minipar.parallel.wire_formats.gradient_compression.sparse_sum import largest, sparse_bytes
from minipar.parallel.wire_formats.gradient_compression.threshold import Threshold
from minipar.parallel.wire_formats.gradient_compression.top_k import DGC, TopK
from minipar.parallel.wire_formats.registry import WIRES as ALL_WIRES
from minipar.parallel.wire_formats.registry import tensor_wire
from minipar.testing import worlds
from tests.support import wires_by_definition as definition
from tests.support.given_gradients import GivenGradients, gradients_along, step_along

SHAPES, STEPS = {"w": (7, 5), "b": (5,), "c": (6, 2, 2)}, 6
WIRES = {name: make for name, make in ALL_WIRES.items() if tensor_wire(name)} | {
    "powersgd": lambda: PowerSGD(rank=2, start=1), "powersgd cold": lambda: PowerSGD(
        rank=1, start=0, warm_start=False),
    "top_k": lambda: TopK(0.1), "dgc": lambda: DGC(0.2), "dgc nesterov": lambda: DGC(
        0.1, nesterov=True, masking=False),
    "onebit_adam": lambda: OneBitAdam(start=3), "threshold": lambda: Threshold(0.5)}
WRITE = "write its {} for {!r}: CONTRIBUTING.md, 'A method that sends little of a gradient'"


def gradients(p, shapes=SHAPES, steps=STEPS):
    """By name (steps, ranks, …); the last number of each tensor has a gradient of 0."""
    found = {}
    for i, (name, shape) in enumerate(shapes.items()):
        drawn = np.random.default_rng(i).standard_normal((steps, p, int(np.prod(shape))))
        drawn[:, :, -1] = 0
        found[name] = drawn.reshape(steps, p, *shape)
    return found


def sums(comm, wire, given, scales=None, **options):
    """What DDP leaves of the gradients in each step: by name (steps, …)."""
    model = GivenGradients({name: array.shape[2:] for name, array in given.items()})
    strategy = make_strategy("ddp", model, comm, wire=wire, **options)
    found: dict[str, list] = {name: [] for name in given}
    for step in range(len(given["w"])):
        for slab in strategy.slabs:
            slab.zero_grad()
        scale = scales[step] if scales else 1.0
        gradients_along(strategy, {name: array[step, comm.rank] for name, array in given.items()},
                        scale)
        for name, values in found.items():
            values.append(np.array(getattr(model, name).grad) / scale)
    return {name: np.array(values) for name, values in found.items()}


def by_definition(name, given):
    """The same in one process."""
    if name.startswith("powersgd"):
        wire = WIRES[name]()
        if not wire.warm_start:
            return None
        return {key: [*(definition.powersgd(
            array.reshape(*array.shape[:3], -1), wire.first_q(key, wire.start, (
                int(np.prod(array.shape[3:])), wire.rank)), wire.rank, wire.start)
            if wire.rank_of(array.shape[2:]) else definition.full(array))]
            for key, array in given.items()}
    if name in ("top_k", "dgc", "dgc nesterov"):
        wire = WIRES[name]()
        options = {"momentum": wire.momentum, "masking": wire.masking, "nesterov": wire.nesterov}
        return {key: [*(definition.dgc(array, wire.density, **options) if array.ndim > 3 else
                        nesterov_or_plain(array, wire))] for key, array in given.items()}
    if name == "onebit_sgd":
        return {key: [*definition.onebit_sgd(array.reshape(*array.shape[:3], -1))]
                for key, array in given.items()}
    flat = np.concatenate([a.reshape(*a.shape[:2], -1) for a in given.values()], axis=2)
    found = {"signs": lambda: definition.signs(flat),
             "onebit_adam": lambda: definition.onebit_adam(flat, 3),
             "sign_vote": lambda: definition.sign_vote(flat, 0.9),
             "threshold": lambda: definition.threshold(flat, 0.5)}
    assert name in found, WRITE.format("sums, in wires_by_definition.py and here,", name)
    stops = np.cumsum([np.prod(shape) for shape in SHAPES.values()])[:-1]
    return dict(zip(SHAPES, np.split(np.array([*found[name]()]), stops, axis=1)))


def nesterov_or_plain(array, wire):
    velocities = [*definition.momentum_sgd(array, wire.momentum)]
    return [g + wire.momentum * v for g, v in zip(array.sum(1), velocities)] \
        if wire.nesterov else velocities


@worlds(2, 3, mpi=(3,), slow=(4, 5))
@pytest.mark.parametrize("name", [name for name in WIRES if name not in (
    "terngrad", "powersgd cold")])
def test_it_equals_its_definition_in_one_process(world, name):
    """The same bits on every rank."""
    given = gradients(world.size)
    right = by_definition(name, given)

    def body(comm):
        found = sums(comm, WIRES[name](), given)
        for key, values in found.items():
            wanted = np.array(right[key]).reshape(values.shape)
            np.testing.assert_allclose(values, wanted, rtol=1e-12, atol=1e-12, err_msg=key)
            assert not ranks_that_differ(comm, values.tobytes())
    world.run(body)


@worlds(3, mpi=())
@pytest.mark.parametrize("name", [name for name in WIRES if name not in (
    "signs", "onebit_adam", "terngrad")])
def test_buckets_do_not_matter(world, name):
    """Methods that treat each tensor, or each number, by itself."""
    given = gradients(world.size)

    def body(comm):
        one, many = (sums(comm, WIRES[name](), given, bucket_mb=size, first_bucket_mb=size)
                     for size in (25.0, 1e-5))
        for key, values in one.items():
            np.testing.assert_allclose(values, many[key], rtol=1e-12, atol=1e-12)
    world.run(body)


@worlds(3, mpi=())
@pytest.mark.parametrize("name", WIRES)
def test_the_loss_scale_leaves_no_trace(world, name):
    """Powers of two, in float64: the same bits; what overflows leaves no trace either."""
    given = gradients(world.size)
    scales = [1024.0, 1024.0, 2.0, 2.0, 64.0, 1.0]
    bad = {key: np.insert(array, 2, np.where(np.arange(world.size) == 1, np.inf, 1.0).reshape(
        -1, *[1] * (array.ndim - 2)) * np.ones_like(array[0]), axis=0)
        for key, array in given.items()}

    def body(comm):
        right = sums(comm, WIRES[name](), given)
        for key, values in sums(comm, WIRES[name](), given, scales).items():
            np.testing.assert_array_equal(values, right[key])
        with np.errstate(all="ignore"):
            found = sums(comm, WIRES[name](), bad)
        for key, values in found.items():
            assert not np.isfinite(values[2]).all()
            np.testing.assert_array_equal(np.delete(values, 2, axis=0), right[key])
    world.run(body)


@worlds(1, mpi=())
@pytest.mark.parametrize("name", WIRES)
def test_one_rank_rounds_nothing_unless_it_has_momentum(world, name):
    given = gradients(1)

    def body(comm):
        wire = WIRES[name]()
        found = sums(comm, wire, given)["w"]
        assert wire.has_momentum != np.array_equal(found, given["w"][:, 0])
    world.run(body)


@worlds(3, mpi=())
@pytest.mark.parametrize("name", WIRES)
def test_fewer_numbers_than_ranks(world, name):
    """Pieces without a number have a scale of 0, not of NaN."""
    def body(comm):
        found = sums(comm, WIRES[name](), gradients(comm.size, {"w": (2, 1)}))
        assert np.isfinite(found["w"]).all()
    world.run(body)


def all_reduce_bytes(n, p):
    return 4 * all_reduce_elements(n, p)


def sign_bytes(n, p):
    sizes = np.array([-(-count // 8) + 4 for count in chunk_lengths(n, p)])
    return 2 * sizes.sum() - sizes - np.roll(sizes, -1)


def vote_bytes(n, p):
    sizes = np.array([-(-count // 4) for count in chunk_lengths(n, p)])
    return 2 * sizes.sum() - sizes - np.roll(sizes, -1)


PREDICTED = {       # of a step in which a method sends what it is for; n numbers, p ranks, float32
    "powersgd": lambda wire, n, p: sum(all_reduce_bytes(m, p) for m in wire.numbers(SHAPES)),
    "powersgd cold": lambda wire, n, p: sum(all_reduce_bytes(m, p) for m in wire.numbers(SHAPES)),
    "top_k": lambda wire, n, p: sparse_bytes([35, 24], 0.1, p) + all_reduce_bytes(5, p),
    "dgc": lambda wire, n, p: sparse_bytes([35, 24], 0.2, p) + all_reduce_bytes(5, p),
    "dgc nesterov": lambda wire, n, p: sparse_bytes([35, 24], 0.1, p) + all_reduce_bytes(5, p),
    "signs": lambda wire, n, p: sign_bytes(n, p),
    "onebit_sgd": lambda wire, n, p: (p - 1) * (n // 8 + 4 * 2 * (5 + 1 + 4)),
    "onebit_adam": lambda wire, n, p: sign_bytes(n, p),
    "sign_vote": lambda wire, n, p: vote_bytes(n, p),
    "terngrad": lambda wire, n, p: (p - 1) * -(-n // 4) + all_reduce_bytes(3, p)}


@pytest.mark.parametrize("name", [name for name in WIRES if name != "threshold"])   # it depends
def test_bytes_are_those_of_the_formula(name):
    assert name in PREDICTED, WRITE.format("bytes, in PREDICTED here,", name)
    given = gradients(4)

    def body(comm):
        model, wire = GivenGradients(SHAPES, np.float32), WIRES[name]()
        strategy = make_strategy("ddp", model, comm, wire=wire)
        optimizer, sent = SGD(strategy.slabs, lr=0.0), []
        for step in range(STEPS):
            comm.start_trace()
            step_along(strategy, optimizer, {key: a[step, comm.rank] for key, a in given.items()})
            trace = comm.stop_trace()
            sent.append(trace.bytes_sent(comm.rank))
        right = PREDICTED[name](wire, 64, comm.size)
        return sent[-1], int(np.broadcast_to(right, comm.size)[comm.rank])
    for sent, right in Cluster(4, chooser=None).run(body)[0]:
        assert sent == right


def test_bytes_of_the_threshold_are_those_that_exceed_it():
    def body(comm):
        wire, n = Threshold(0.5), [30, 0, 7][comm.rank]
        given = np.where(np.arange(100) < n, 2.0, 0.1)
        strategy = make_strategy("ddp", GivenGradients({"w": (100,)}, np.float32), comm, wire=wire)
        comm.start_trace()
        step_along(strategy, SGD(strategy.slabs, lr=0.0), {"w": given})
        return comm.stop_trace().bytes_sent(comm.rank, "all_gather")
    found = Cluster(3, chooser=None).run(body)[0]
    assert found == [4 * 37 - 4 * 0, 4 * 37 - 4 * 7, 4 * 37 - 4 * 30]


def test_of_equal_numbers_the_first_are_sent_and_nan_is():
    assert largest(np.array([1.0, -2, 2, 0, -2]), 2).tolist() == [1, 2]
    assert largest(np.array([1.0, np.nan, 3, np.inf]), 2).tolist() == [1, 3]
