"""Bring matrices that are cut over ranks together on one rank each, and hand the results back.

    rank 0   A A A A A B      all-to-all      A A A A A A     each rank has whole matrices,
    rank 1   A B B B B B   ──────────────▶    B B B B B B     and returns the parts of the result

A rank that has more than half of a matrix takes it, since then the least must be sent.  Any other
matrix goes to the rank that has least to do.  So does any box that tensor parallelism (tp) cut out
of a matrix, because the ranks of tp must choose alike.  Where pieces are whole parameters (ZeRO-1
with `whole_parameters`), nothing is sent.  If each of p equal matrices, n numbers in all, is cut
into p equal pieces, a rank sends 2(p-1)n/p² numbers.

The other way, `all_gather`, gives each matrix to all ranks.  A rank then sends (p-1)n/p numbers,
and does all of the work.  Liu et al. 2025 (arXiv 2502.16982) gather; Ahn et al. 2025 (Dion)
exchange.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...backend import Array
from ...comm import collectives
from ...nn.slab import FlatBuffer, Segment

WholeStep = Callable[[Array], Array]         # from a whole matrix, flat, to the result, flat


class TensorPart(NamedTuple):
    """A parameter's box in a slab, or in the flat array that ranks cut, and each rank's share."""

    parameter: Any              # a Parameter, perhaps without values
    box: Segment
    lengths: Sequence[int]      # the elements of it that each rank of the flat array has


def parts_of(slab: FlatBuffer) -> Iterator[TensorPart]:
    """All parameters of a slab, or of a piece's flat; the same on all ranks that have pieces."""
    flat = getattr(slab, "flat", None)
    counts = flat.counts if flat else [slab.data.size]
    for parameter, box in zip((flat or slab).parameters, flat.layout if flat else slab.segments):
        yield TensorPart(parameter, box, [max(0, min(stop, box.stop) - max(stop - count, box.start))
                                          for stop, count in zip(accumulate(counts), counts)])


def ranks_with_pieces(slab: FlatBuffer) -> Any:
    """The ranks that have pieces of the same flat; None for a slab, which is whole."""
    flat = getattr(slab, "flat", None)
    return flat and flat.comm


class Matrix(NamedTuple):
    """A flat matrix: rank r of a communicator has `lengths[r]` elements of it, this rank `part`.

    `work` computes with the whole.  If this is only a box of a matrix of `size` elements, the ranks
    that have the other boxes call `work` together.
    """

    part: Array
    lengths: Sequence[int]
    size: int
    work: WholeStep


def all_gather(over: Any, matrices: Sequence[Matrix]) -> list[Array]:
    """Collective over `over`.  This rank's parts of the results; all ranks do all the work."""
    results = []
    for part, lengths, _, work in matrices:
        whole = collectives.all_gather(over, part, counts=lengths)
        start = sum(lengths[:over.rank])
        results.append(work(whole)[start:start + lengths[over.rank]])
    return results


def all_to_all(over: Any, matrices: Sequence[Matrix]) -> list[Array]:
    """Collective over `over`.  This rank's parts of the results; one rank does a matrix's work."""
    owners = choose_owners(matrices, over.size)
    order = sorted(range(len(matrices)), key=owners.__getitem__)
    counts = [[sum(matrix.lengths[source] for matrix, owner in zip(matrices, owners)
                   if owner == dest) for dest in range(over.size)] for source in range(over.size)]
    arrived = collectives.all_to_all(
        over, np.concatenate([matrices[i].part for i in order]), counts=counts,
        algorithm="pairwise")
    mine = [matrix for matrix, owner in zip(matrices, owners) if owner == over.rank]
    # by rank, and for each rank by matrix: its part
    lengths = [matrix.lengths[rank] for rank in range(over.size) for matrix in mine]
    parts = np.split(arrived, [*accumulate(lengths)][:-1])
    for i, matrix in enumerate(mine):
        whole = matrix.work(np.concatenate(parts[i::len(mine)]))
        parts[i::len(mine)] = np.split(whole, [*accumulate(matrix.lengths)][:-1])
    returned = collectives.all_to_all(over, np.concatenate(parts), counts=[*zip(*counts)],
                                      algorithm="pairwise")
    stops = accumulate(matrices[i].part.size for i in order)
    return [part for _, part in sorted(zip(order, np.split(returned, [*stops][:-1])),
                                       key=lambda pair: pair[0])]


def choose_owners(matrices: Sequence[Matrix], num_ranks: int) -> list[int]:
    """The rank that works on each matrix: the one with more than half of it, or with least to do.
    """
    owners, loads = [], [0] * num_ranks
    for matrix in matrices:
        most = max(matrix.lengths)
        is_whole = sum(matrix.lengths) == matrix.size
        owner = matrix.lengths.index(most) if is_whole and 2 * most > matrix.size \
            else loads.index(min(loads))
        loads[owner] += matrix.size
        owners.append(owner)
    return owners


Exchange = Callable[[Any, Sequence[Matrix]], list[Array]]
Where = tuple[FlatBuffer, str]          # a slab and a parameter's name


def work_on_whole(slabs: Sequence[FlatBuffer], wanted: Callable[[Segment], bool],
                  work: Callable[[TensorPart, Array], Array], exchange: Exchange,
                  parts: dict[Where, Array]) -> dict[Where, Array]:
    """Collective.  This rank's parts of work(whole) for each wanted parameter of the slabs.

    `parts` are this rank's parts of the wholes.  Without pieces nothing is exchanged.
    """
    results: dict[Where, Array] = {}
    for over in dict.fromkeys(map(ranks_with_pieces, slabs)):
        found = {(slab, part.box.name): part for slab in slabs if ranks_with_pieces(slab) is over
                 for part in parts_of(slab) if wanted(part.box)}
        nothing = slabs[0].data[:0]
        matrices = [Matrix(parts.get(where, nothing), part.lengths, prod(part.box.global_shape),
                           partial(work, part)) for where, part in found.items()]
        done = [matrix.work(matrix.part) for matrix in matrices] if over is None else \
            exchange(over, matrices) if matrices else []
        results |= {where: result for where, result in zip(found, done) if where in parts}
    return results


EXCHANGES: dict[str, Exchange] = {"all_to_all": all_to_all, "all_gather": all_gather}
