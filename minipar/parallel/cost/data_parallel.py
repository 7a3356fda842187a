"""Bytes that a step of each data-parallel strategy sends and keeps, by formulas on paper.

    Ψ parameters, p ranks, m microbatches     sent by a rank, in elements   kept, float32, Adam
    data parallelism, ZeRO-1                  2Ψ (p-1)/p                    16Ψ; 8Ψ + 8Ψ/p
    ZeRO-2                                    (m+1)Ψ (p-1)/p                4Ψ + 12Ψ/p + bucket
    ZeRO-3, FSDP: at most                     3mΨ (p-1)/p                   16Ψ/p + units in use
    FSDP that keeps weights till backward     2mΨ (p-1)/p                   16Ψ/p + 4Ψ + gradient

`paper_bytes` returns the middle column, in bytes.  For data parallelism, ZeRO-1 and ZeRO-2 it is
exact where p divides everything.  `bytes_per_step` also counts pieces of uneven length, for rings.
In a reduce-scatter rank r sends partial sums of all chunks but its own; in an all-gather it sends
all chunks but its successor's.  Other algorithms, which "auto" takes for short messages, may send
more bytes in fewer rounds.

The formulas read three facts about a strategy from the table in `parallel/registry.py`.  They are
what it shards, and whether it reduces gradients, or gathers parameters, for each microbatch.

Rajbhandari et al. 2020, arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from ...comm.collectives import chunk_bounds
from ...nn import Module, Parameter
from ...nn.chain import chain
from ..registry import GRADIENTS, PARAMETERS, STATES, STRATEGIES, PaperCost

Unit = TypeVar("Unit", bound=Hashable)      # the number of an FSDP unit, or its name


def _cost(name: str) -> PaperCost:
    """The cost of a strategy.  Raises ValueError for one without a formula."""
    costs = {name: entry.cost for name, entry in STRATEGIES.items() if entry.cost is not None}
    if name not in costs:
        raise ValueError(f"no formula for {name!r}: choose from {', '.join(costs)}")
    return costs[name]


def chunk_lengths(size: int, p: int) -> list[int]:
    """The lengths of the p chunks of `size` elements: they differ by at most 1, longer ones first.
    """
    return [stop - start for start, stop in chunk_bounds(size, p)]


def piece(size: int, p: int, rank: int) -> int:
    """The length of a rank's chunk: chunk_lengths(size, p)[rank]."""
    return size // p + (rank < size % p)


def reduce_scatter_elements(counts: Sequence[int]) -> np.ndarray:
    """Elements that each rank sends in a ring's reduce-scatter into pieces of `counts`: (p,)."""
    return sum(counts) - np.array(counts)


def all_gather_elements(counts: Sequence[int]) -> np.ndarray:
    """Elements that each rank sends in a ring's all-gather of pieces of `counts`: (p,)."""
    return sum(counts) - np.roll(counts, -1)


def all_reduce_elements(size: int, p: int) -> np.ndarray:
    """Elements that each rank sends in a ring's all-reduce of `size`: (p,)."""
    counts = chunk_lengths(size, p)
    return reduce_scatter_elements(counts) + all_gather_elements(counts)


def units_of(model: Module) -> tuple[list[int], list[int]]:
    """(the sizes of FSDP's units, the order in which forward uses them).

    Each part of the model's chain is a unit.  Parts that share a weight are one unit: forward uses
    the unit of a tied embedding and head first and last.
    """
    units: list[set[Parameter]] = []
    uses = []
    for part in chain(model):
        own = {*part.parameters()}
        uses.append(next((i for i, unit in enumerate(units) if unit & own), len(units)))
        units[uses[-1]:uses[-1] + 1] = [own.union(*units[uses[-1]:uses[-1] + 1])]
    return [sum(p.size for p in unit) for unit in units], uses


def forward_and_backward(uses: Sequence[int]) -> list[int]:
    """The units that forward and then backward need, in order; `uses` are those of forward.

    The last unit is still gathered when backward begins.  The first one, an embedding or a layer on
    data, needs no weight for its backward.
    """
    return [*uses, *uses[-2:0:-1]]


def gathered_units(uses: Sequence[int], kept: bool = False) -> list[int]:
    """The units that FSDP gathers in one forward and backward, in order; `uses` are of forward.

    Two units are whole at a time: the one in use, and the next or the previous one.  So a unit that
    is used again within two uses is not gathered again.  With `kept` each unit is gathered once: it
    stays until its backward.
    """
    path = forward_and_backward(uses)
    return [unit for i, unit in enumerate(path) if unit not in path[:i]] if kept else gathers(path)


def gathers(path: Sequence[Unit]) -> list[Unit]:
    """The uses in `path` for which a unit must be gathered, if two units are whole at a time."""
    return [unit for i, unit in enumerate(path) if unit not in path[max(0, i - 2):i]]


def bytes_per_step(name: str, sizes: Sequence[int], p: int, num_microbatches: int = 1,
                   itemsize: int = 4, *, uses: Sequence[int] = (), gathered: Sequence[int] = (),
                   shard: int | None = None, kept: bool = False) -> list[int]:
    """Bytes that each rank sends in a training step, without bookkeeping messages.

    `sizes` and `gathered` are numbers of elements:

        strategy            sizes                           also
        ddp, zero1, zero2   of each bucket
        fsdp                of each unit                    uses: their order in forward (units_of)
        zero3               of the weight of each use       gathered: of each gather, in forward
                            in forward                      and in backward

    For fsdp, `shard` is the number of neighbours of hybrid sharding, and `kept` stands for
    reshard_after_forward=False.  Raises ValueError for a strategy without such a formula (the
    classic DataParallel has `data_parallel_bytes`).
    """
    cost, m = _cost(name), num_microbatches
    if cost.gathers_each_microbatch and uses:
        total = m * _fsdp_elements(sizes, p, uses, shard or p, kept)
    else:
        reduced = sum(reduce_scatter_elements(chunk_lengths(n, p)) for n in sizes)
        known = gathered if cost.gathers_each_microbatch else sizes
        total = (np.zeros(p, np.int64) + reduced * (m if cost.reduces_each_microbatch else 1)
                 + sum(all_gather_elements(chunk_lengths(n, p)) for n in known)
                 * (m if cost.gathers_each_microbatch else 1))
    return (total * itemsize).tolist()


def _fsdp_elements(sizes: Sequence[int], p: int, uses: Sequence[int], group: int,
                   kept: bool) -> np.ndarray:
    """Elements that each rank of fsdp sends for one microbatch, in groups of `group` ranks: (p,).
    """
    within = sum(reduce_scatter_elements(chunk_lengths(n, group)) for n in sizes)
    for unit in gathered_units(uses, kept):
        within = within + all_gather_elements(chunk_lengths(sizes[unit], group))
    between = [sum(all_reduce_elements(chunk_lengths(n, group)[r % group], p // group)[r // group]
                   for n in sizes) for r in range(p)]
    return np.tile(within, p // group) + between


def paper_bytes(name: str, num_parameters: int, p: int, num_microbatches: int = 1,
                itemsize: int = 4, kept: bool = False) -> float:
    """Bytes that a rank sends in a step, by the published formula.

    For fsdp it is an upper bound; for zero3 it is one too, if no weight is used twice.
    """
    messages = _cost(name).messages(num_microbatches, kept)
    return messages * num_parameters * itemsize * (p - 1) / p


def data_parallel_bytes(num_parameters: int, inputs: Sequence[int], outputs: Sequence[int],
                        p: int, itemsize: int = 4) -> dict[str, list[int]]:
    """Bytes that each rank sends in each of the five exchanges of the classic DataParallel.

    `inputs` and `outputs` are the bytes of each rank's rows.  Rank 0 sends the parameters p - 1
    times and receives as many gradients, so its traffic grows with p.
    """
    psi, others = num_parameters * itemsize, [0] * (p - 1)
    return {"scatter inputs": [sum(inputs[1:]), *others],
            "broadcast parameters": [(p - 1) * psi, *others],
            "gather outputs": [0, *outputs[1:]],
            "scatter output gradients": [sum(outputs[1:]), *others],
            "reduce gradients": [0] + [psi] * (p - 1)}


def peak_whole_gradients(uses: Sequence[Unit], sizes: Mapping[Unit, int]) -> int:
    """The most elements of whole gradients that live at one time.

    `uses` is the order in which forward uses the units or buckets.  A whole gradient lives from the
    first contribution of backward to the last.  So one unit's gradient lives at a time, unless a
    unit is used at both ends of the model (tied weights, FSDP's root).  The gradient of such a unit
    begins in the head's backward and waits for the embedding's.
    """
    last = {unit: i for i, unit in enumerate(uses)}
    return max(sum(sizes[unit] for unit in last if uses.index(unit) <= i <= last[unit])
               for i in range(len(uses)))


def memory_per_rank(name: str, sizes: Sequence[int], p: int, rank: int = 0, itemsize: int = 4, *,
                    num_states: int = 2, uses: Sequence[int] = (), gathered: int = 0,
                    shard: int | None = None, kept: bool = False) -> dict[str, int]:
    """Peak bytes by the ledger's kinds, without activations.

    `num_states` is the number of optimizer states: 2 for Adam, 0 or 1 for SGD.  `sizes` (in
    elements) and `uses` (in the order of forward) belong to the arrays that are reduced together:
    buckets, units or single parameters.  For single parameters, `gathered` is the largest sum of
    two neighbours in the order of uses in forward and backward.  `shard` is the number of
    neighbours of hybrid sharding, whose pieces wait for the sum over replicas; the formula then
    assumes blocks of one size.  `kept` stands for reshard_after_forward=False.
    """
    cost, group, whole = STRATEGIES[name].cost, shard or p, sum(sizes)
    used = {unit: sizes[unit] for unit in uses}
    sharded, communication = cost.sharded if cost else (), 0
    if PARAMETERS in sharded:                           # pieces of units
        parameters = states = sum(piece(n, group, rank % group) for n in sizes)
        gradients = parameters + peak_whole_gradients(uses, used)
        path = forward_and_backward(uses)
        pairs = [sum(sizes[unit] for unit in {*pair}) for pair in zip(path, path[1:] or path)]
        waiting = states if group < p else 0
        communication = gathered or (sum(sizes) if kept else max(*pairs, pairs[-1] + waiting))
    else:
        part = sum(piece(n, p, rank) for n in sizes)
        states = part if STATES in sharded else whole
        gradients, parameters = part if GRADIENTS in sharded else whole, whole
        if GRADIENTS in sharded:
            gradients += peak_whole_gradients(uses, used)
    return {"parameters": parameters * itemsize, "gradients": gradients * itemsize,
            "optimizer states": num_states * states * itemsize,
            "communication": communication * itemsize}
