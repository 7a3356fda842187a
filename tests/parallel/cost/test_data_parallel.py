"""Bytes of a step equal the formula for every strategy, whether p divides everything or not."""

from itertools import cycle

import numpy as np
import pytest

from minipar.nn import GPT
from minipar.parallel.cost.data_parallel import (
    bytes_per_step,
    data_parallel_bytes,
    gathered_units,
    gathers,
    paper_bytes,
    peak_whole_gradients,
    units_of,
)
from minipar.parallel.registry import STRATEGIES
from minipar.testing import worlds
from tests.support.measured_step import CONFIGS, TIME, counted, rings_only

NAMES = (*(name for name, entry in STRATEGIES.items() if entry.cost is not None),
         "ddp one bucket", "fsdp no prefetch", "fsdp kept", "fsdp hybrid")


@pytest.fixture(autouse=True)
def rings(monkeypatch):
    rings_only(monkeypatch)


def zero3_sizes(model: GPT) -> tuple[list[int], list[int]]:
    """Sizes of all weights, and of those that are gathered, in order.

    A tied GPT uses its embedding twice.  Backward needs the numbers of every matrix that data goes
    through, and of layer norms' weights, but not those of biases and embeddings.  A weight that was
    used one or two uses ago is there.
    """
    named = {name: p.size for name, p in model.named_parameters()}
    used = [*named, "wte.weight"]
    again = [name for name in used[2:][::-1] if name.endswith("weight")]
    return [*named.values()], [named[name] for name in gathers([*used, *again])]


def predicted(name: str, model: GPT, p: int, k: int, buckets: list[int]) -> list[int]:
    if name.startswith("fsdp"):
        units, uses = units_of(model)
        shard = 2 if name == "fsdp hybrid" and p % 2 == 0 else None
        return bytes_per_step("fsdp", units, p, k, uses=uses, shard=shard,
                              kept=name == "fsdp kept")
    if name == "zero3":
        used, gathered = zero3_sizes(model)
        return bytes_per_step(name, used, p, k, gathered=gathered)
    assert sum(buckets) == model.num_parameters()
    return bytes_per_step(name.split()[0], buckets, p, k)


MICROBATCHES = {"divides": 1, "uneven": 3}


@worlds(1, 3, 4, mpi=(), slow=(2,), slow_mpi=(3, 4))
@pytest.mark.parametrize("config, k", MICROBATCHES.items())
@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_a_step(world, name, config, k):
    check_bytes_of_a_step(world, name, config, k)


@worlds(mpi=(4,))
@pytest.mark.parametrize("name, config", [*zip(NAMES, cycle(MICROBATCHES))])
@pytest.mark.one_in(3)
def test_bytes_of_a_step_on_real_ranks(world, name, config):
    """In turn with one batch and with microbatches; the slow tests above have both."""
    check_bytes_of_a_step(world, name, config, MICROBATCHES[config])


def check_bytes_of_a_step(world, name, config, k):
    def body(comm):
        sent, buckets = counted(comm, name, CONFIGS[config], k)
        control = sent.pop("control", 0)
        expected = predicted(name, GPT(CONFIGS[config]), comm.size, k, buckets)
        assert sum(sent.values()) == expected[comm.rank]
        assert (control > 0) == (comm.size > 1)
    world.run(body)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("k", [1, 3])
def test_the_papers_formulas_where_p_divides_everything(p, k):
    model = GPT(CONFIGS["divides"])
    psi, (units, uses) = model.num_parameters(), units_of(model)
    root, blocks = units[0], sum(units[1:])
    for name in ("ddp", "zero1", "zero2"):
        assert bytes_per_step(name, [psi], p, k) == [paper_bytes(name, psi, p, k)] * p
    # FSDP: the root is gathered at both ends of forward, the last block is still there in backward.
    exact = 4 * k * (3 * blocks - units[-1] + 3 * root) * (p - 1) // p
    sent = bytes_per_step("fsdp", units, p, k, uses=uses)
    assert sent == [exact] * p and exact <= paper_bytes("fsdp", psi, p, k)
    kept = bytes_per_step("fsdp", units, p, k, uses=uses, kept=True)
    assert kept == [paper_bytes("fsdp", psi, p, k, kept=True)] * p
    # ZeRO-3: biases and embeddings are not gathered again for backward.
    used, gathered = zero3_sizes(model)
    sent = bytes_per_step("zero3", used, p, k, gathered=gathered)
    assert sent == [4 * k * (sum(used) + sum(gathered)) * (p - 1) // p] * p


@pytest.mark.parametrize("p, shard", [(4, 2), (6, 2), (6, 3)])
def test_hybrid_sharding(p, shard):
    """All-gathers and reduce-scatter among S neighbours, then an all-reduce of Ψ/S over R."""
    model, replicas = GPT(CONFIGS["divides"]), p // shard
    units, uses = units_of(model)
    gathers = sum(units[unit] for unit in gathered_units(uses))
    expected = 4 * ((gathers + sum(units)) * (shard - 1) // shard
                    + 2 * sum(units) // shard * (replicas - 1) // replicas)
    assert bytes_per_step("fsdp", units, p, uses=uses, shard=shard) == [expected] * p


def test_what_is_gathered_by_hand():
    root_and_three = [0, 1, 2, 3, 0]
    assert gathered_units(root_and_three) == [0, 1, 2, 3, 0, 2, 1]
    assert gathered_units(root_and_three, kept=True) == [0, 1, 2, 3]
    assert gathered_units([0, 1, 0]) == [0, 1]             # a single block: both stay
    assert gathered_units([0, 1, 2]) == [0, 1, 2]          # an MLP: layer 0 needs no weight again
    assert gathered_units([0, 1, 2, 3]) == [0, 1, 2, 3, 1]
    assert peak_whole_gradients(root_and_three, {0: 10, 1: 1, 2: 2, 3: 3}) == 13
    assert peak_whole_gradients([0, 1, 2], {0: 5, 1: 7, 2: 2}) == 7


@worlds(1, 2, 3, 4, mpi=(4,), slow_mpi=(2,))
@pytest.mark.parametrize("config", CONFIGS)
def test_the_five_exchanges_of_data_parallel(world, config):
    def body(comm):
        sent, _ = counted(comm, "dp", CONFIGS[config])
        sent.pop("control", 0)
        rows, vocabulary = 2, CONFIGS[config].vocab_size
        expected = data_parallel_bytes(
            GPT(CONFIGS[config]).num_parameters(), [rows * TIME * 8] * comm.size,
            [rows * TIME * vocabulary * 4] * comm.size, comm.size)
        assert +sent == +type(sent)({label: of[comm.rank] for label, of in expected.items()})
    world.run(body)


def test_the_root_of_data_parallel_is_the_bottleneck():
    """Its traffic grows with p, where a ring's stays below 2Ψ."""
    roots = [sum(of[0] for of in data_parallel_bytes(1000, [8] * p, [8] * p, p).values())
             for p in (2, 4, 8)]
    assert roots == [4000 + 16, 3 * (4000 + 16), 7 * (4000 + 16)]
    assert max(bytes_per_step("ddp", [1000], 8)) <= 2 * 4000


def test_an_unknown_name_teaches():
    with pytest.raises(ValueError, match="no formula for 'dp'.*ddp, zero1"):
        bytes_per_step("dp", [1], 2)


def test_over_all_ranks_nothing_depends_on_how_pieces_divide():
    """Every partial sum travels p - 1 times, and so does every finished element."""
    for size in (1, 7, 12):
        for p in (2, 3, 5):
            assert np.sum(bytes_per_step("ddp", [size], p)) == 2 * (p - 1) * size * 4
