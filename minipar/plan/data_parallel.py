"""What a step of each strategy sends and keeps, worked out on paper, apart from the code.

    Ψ parameters, p ranks, m microbatches     sent by a rank, in elements   kept, float32, Adam
    data parallelism, ZeRO-1                  2Ψ (p-1)/p                    16Ψ; 8Ψ + 8Ψ/p
    ZeRO-2                                    (m+1)Ψ (p-1)/p                4Ψ + 12Ψ/p + bucket
    ZeRO-3, FSDP: at most                     3mΨ (p-1)/p                   16Ψ/p + units in use
    FSDP that keeps weights till backward     2mΨ (p-1)/p                   16Ψ/p + 4Ψ + gradient

These are exact where p divides everything (`paper_bytes`).  The functions below also know what
pieces that do not divide evenly do, for messages around a ring, whose rank r passes on all partial
sums but its own, then all chunks but its successor's.  Other algorithms, which "auto" takes for
short messages, trade bytes for rounds.

Rajbhandari et al. 2020, arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from ..comm.collectives import chunk_bounds
from ..nn import Module
from ..parallel.strategies import blocks

Unit = TypeVar("Unit", bound=Hashable)      # its number, or its name


def even(size: int, p: int) -> list[int]:
    """Lengths of `size` elements cut among p ranks, larger ones first."""
    return [stop - start for start, stop in chunk_bounds(size, p)]


def padded(size: int, p: int) -> list[int]:
    """Lengths of equal pieces, of which the last ones may be short or empty: FSDP's."""
    length = -(-size // p)
    return [max(0, min(length, size - r * length)) for r in range(p)]


def sent_to_sum(counts: Sequence[int]) -> np.ndarray:
    """Elements that each rank sends in a ring's reduce-scatter into pieces of `counts`: (p,)."""
    return sum(counts) - np.array(counts)


def sent_to_know(counts: Sequence[int]) -> np.ndarray:
    """Elements that each rank sends in a ring's all-gather of pieces of `counts`: (p,)."""
    return sum(counts) - np.roll(counts, -1)


def sent_to_share(size: int, p: int) -> np.ndarray:
    """Elements that each rank sends in a ring's all-reduce of `size`: (p,)."""
    return sent_to_sum(even(size, p)) + sent_to_know(even(size, p))


def units_of(model: Module) -> tuple[list[int], list[int]]:
    """Sizes of FSDP's units, one for each block and the root (number 0) for the rest, if any; and
    the units in the order in which forward uses them: the root at both ends."""
    sizes = [sum(p.size for p in block.parameters()) for block in blocks(model)]
    root = model.num_parameters() - sum(sizes)
    if not root:
        return sizes, list(range(len(sizes)))
    return [root, *sizes], [0, *range(1, len(sizes) + 1), 0]


def there_and_back(uses: Sequence[int]) -> list[int]:
    """The uses of forward, and then of backward: the last one is still there, and what comes first
    (an embedding, a layer on data) needs no weight for its backward."""
    return [*uses, *uses[-2:0:-1]]


def num_gathers(uses: Sequence[int], kept: bool = False) -> list[int]:
    """The units that FSDP gathers in one forward and backward, in order; `uses` are of forward.

    Two units are there at a time, one in use and the next or the last: who is used again within
    two uses needs no second gather.  With `kept` nothing is released before its backward.
    """
    path = there_and_back(uses)
    return [unit for i, unit in enumerate(path) if unit not in path[:i]] if kept else gathers(path)


def gathers(path: Sequence[Unit]) -> list[Unit]:
    """Those uses of units for which a unit is gathered, where two are there at a time."""
    return [unit for i, unit in enumerate(path) if unit not in path[max(0, i - 2):i]]


def bytes_per_step(name: str, sizes: Sequence[int], p: int, num_microbatches: int = 1,
                   itemsize: int = 4, *, uses: Sequence[int] = (), gathered: Sequence[int] = (),
                   shard: int | None = None, kept: bool = False) -> list[int]:
    """Bytes that each rank sends in a training step, bookkeeping apart.

    `sizes`, in elements, of what is reduced together: of the buckets (ddp, zero1, zero2), of the
    units (fsdp; `uses` is their order in forward, see `units_of`), or of the weight of every use
    in forward (zero3; `gathered` are the sizes of all that is gathered, in forward and backward).
    `shard`: hybrid sharding over so many neighbours.  `kept`: reshard_after_forward=False.
    Raises ValueError for a name that has no such formula (dp: `data_parallel_bytes`).
    """
    k, total = num_microbatches, np.zeros(p, np.int64)
    if name == "ddp":
        total += sum(sent_to_share(n, p) for n in sizes)
    elif name in ("zero1", "zero2"):
        for n in sizes:
            total += sent_to_sum(even(n, p)) * (k if name == "zero2" else 1)
            total += sent_to_know(even(n, p))
    elif name == "zero3":
        total += k * sum(sent_to_sum(even(n, p)) for n in sizes)
        total += k * sum(sent_to_know(even(n, p)) for n in gathered)
    elif name == "fsdp":
        group = shard or p
        within = sum(sent_to_sum(padded(n, group)) for n in sizes)
        for unit in num_gathers(uses, kept):
            within = within + sent_to_know([-(-sizes[unit] // group)] * group)
        between = [sum(sent_to_share(padded(n, group)[r % group], p // group)[r // group]
                       for n in sizes) for r in range(p)]
        total += k * (np.tile(within, p // group) + between)
    else:
        raise ValueError(f"no formula for {name!r}: choose from ddp, zero1, zero2, zero3, fsdp")
    return (total * itemsize).tolist()


def paper_bytes(name: str, num_parameters: int, p: int, num_microbatches: int = 1,
                itemsize: int = 4, kept: bool = False) -> float:
    """The published formula: bytes that a rank sends in a step.

    A bound for fsdp, but for its padding, and for zero3 if no weight is used twice.
    """
    k = num_microbatches
    factor = {"ddp": 2, "zero1": 2, "zero2": k + 1, "zero3": 3 * k,
              "fsdp": (2 if kept else 3) * k}[name]
    return factor * num_parameters * itemsize * (p - 1) / p


def data_parallel_bytes(num_parameters: int, inputs: Sequence[int], outputs: Sequence[int],
                        p: int, itemsize: int = 4) -> dict[str, list[int]]:
    """Bytes that each rank sends in each of the five exchanges of the classic DataParallel.

    `inputs` and `outputs`: bytes of each rank's part.  Rank 0 sends (p - 1) times the parameters
    and receives as many gradients: its traffic grows with p.
    """
    psi, others = num_parameters * itemsize, [0] * (p - 1)
    return {"scatter inputs": [sum(inputs[1:]), *others],
            "broadcast parameters": [(p - 1) * psi, *others],
            "gather outputs": [0, *outputs[1:]],
            "scatter output gradients": [sum(outputs[1:]), *others],
            "reduce gradients": [0] + [psi] * (p - 1)}


def whole_gradients(uses: Sequence[Unit], sizes: Sequence[int] | Mapping[Unit, int]) -> int:
    """Most elements of whole gradients at one time; `uses` is the units' (buckets') order.

    A gradient lives from its unit's first contribution to its last: one at a time, but for a unit
    that is used at both ends of the model (tied weights, FSDP's root), whose gradient begins with
    the head's backward and waits for the embedding's.
    """
    last = {unit: i for i, unit in enumerate(uses)}
    return max(sum(sizes[unit] for unit in last if uses.index(unit) <= i <= last[unit])
               for i in range(len(uses)))


def memory_per_rank(name: str, sizes: Sequence[int], p: int, rank: int = 0, itemsize: int = 4, *,
                    num_states: int = 2, uses: Sequence[int] = (), gathered: int = 0,
                    shard: int | None = None, kept: bool = False) -> dict[str, int]:
    """Peak bytes by the ledger's kinds, activations apart; `num_states` is Adam's 2 or SGD's 0, 1.

    `sizes`, in elements, and `uses`, in the order of forward: of the buckets (zero1, zero2), of the
    units (fsdp), of the parameters (zero3; `gathered` is the most that one operation gathers, a
    weight and its bias).  `shard`: of hybrid sharding, whose pieces wait for the replicas' sum (for
    blocks of one size).  `kept`: reshard_after_forward=False.
    """
    parameters = gradients = states = sum(sizes)
    communication, group = 0, shard or p
    piece = sum(even(n, p)[rank] for n in sizes)
    if name in ("zero1", "zero2", "zero3"):
        states = piece
    if name == "zero2":
        gradients = piece + whole_gradients(uses, sizes)
    if name == "zero3":
        parameters, gradients, communication = piece, piece, gathered
    if name == "fsdp":
        states = sum(padded(n, group)[rank % group] for n in sizes)
        full = [-(-n // group) * group for n in sizes]
        parameters = sum(full) // group
        gradients = parameters + whole_gradients(uses, sizes)
        path = there_and_back(uses)
        pairs = [sum(full[unit] for unit in {*pair}) for pair in zip(path, path[1:] or path)]
        waiting = states if group < p else 0
        communication = sum(full) if kept else max(*pairs, pairs[-1] + waiting)
    return {"parameters": parameters * itemsize, "gradients": gradients * itemsize,
            "optimizer states": num_states * states * itemsize,
            "communication": communication * itemsize}
