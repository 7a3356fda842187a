"""Flats: parameters that are reduced, or gathered, in one message; and this rank's pieces of them.

    slab     [ h.0: c_attn c_fc … | h.1: c_attn c_fc … ]    the parameters that tp cuts
    flats    [ ────────────────── | ────────────────── ]    of FSDP, here: a flat for each unit
    pieces   [ ▒▒▒▒▒▒············ | ▒▒▒▒▒▒············ ]    this rank's parts of them
    units           h.0           │        h.1              gathered and freed together
    pieces   [ ▒▒▒▒▒▒············ | ▒▒▒▒▒▒············ ]
    flats    [ ────────────────── | ────────────────── ]
    slab     [ h.0: ln_1 ln_2 …   | h.1: ln_1 ln_2 …   ]    the parameters that tp copies

    slab     parameters of this rank that are replicated along the same axes (nn/slab.py)
    segment  the place of one parameter in a slab, a flat or a piece (nn/slab.py)
    flat     some segments of one slab, end to end; a bucket of DDP is one
    unit     of FSDP: the flats of a part of the model, here one in each slab (zero/fsdp.py)
    piece    a rank's part of a flat, which ZeRO's optimizers see in the place of a slab

The ranks of a flat's `comm` have the same parameters.  In DDP they are the ranks along the mesh's
axes replicate, dp and cp, and they sum the flat's gradient.  From ZeRO-1 on they are the ranks
along dp and cp, and each of them keeps a piece of the flat.  Ranks along replicate have the same
piece.  For experts, the axis edp takes the place of dp (expert/distribute_experts.py).
`chunk_bounds` cuts a flat into pieces, without padding; with `whole_parameters` the cuts are
between parameters.  Rajbhandari et al. 2020, section 5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..autograd import Tensor
from ..backend import Array, to_device_of
from ..comm import Communicator
from ..comm.collectives import all_gather, chunk_bounds
from ..nn import Parameter, Slab
from ..nn.slab import Buffers, Segment


class Flat:
    """Some parameters of a slab, end to end, which the ranks of `comm` cut into pieces.

    `members` are the parameters' numbers in the slab, `segments` their places in the slab, and
    `layout` their places in the flat.  `counts` are the lengths of all ranks' pieces, and `bounds`
    is where this rank's piece begins and ends.  The ranks of `copies` have the same piece.  With
    `whole_parameters` pieces begin where a parameter begins, and so differ in length.
    """

    def __init__(self, slab: Slab, members: Sequence[int], comm: Communicator,
                 copies: Communicator, whole_parameters: bool = False):
        self.slab, self.comm, self.copies = slab, comm, copies
        self.parameters = [slab.parameters[i] for i in members]
        self.segments = [slab.segments[i] for i in members]
        self.runs = merged_slices(self.segments)
        self.layout = [*end_to_end(self.segments)]
        self.name = self.segments[0].name if self.segments else ""     # no other flat has it
        self.size = self.layout[-1].stop if self.layout else 0
        bounds = between_parameters(self.layout, comm.size) if whole_parameters else \
            chunk_bounds(self.size, comm.size)
        self.counts, self.bounds = [b - a for a, b in bounds], bounds[comm.rank]

    def of(self, array: Array) -> Array:
        """The flat's part of an array as long as the slab; a view, if its members are neighbours.
        """
        parts = [array[run] for run in self.runs]
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else array[:0]

    def mine(self, array: Array) -> Array:
        """This rank's piece of the flat's part of `array`, which is as long as the slab."""
        return self.of(array)[slice(*self.bounds)]

    @property
    def data(self) -> Array:
        """The parameters (size,), while the slab has them: a view, for neighbours alone."""
        assert len(self.runs) < 2, "a write into a copy would be lost"
        return self.of(self.slab.data)

    @property
    def grad(self) -> Array:
        """The gradients (size,), while the slab has them: a view, for neighbours alone."""
        assert len(self.runs) < 2, "a write into a copy would be lost"
        return self.of(self.slab.grad)

    def fill_missing(self) -> None:
        """Write zeros where no gradient came."""
        for parameter in self.parameters:
            parameter.slot.fill_if_missing()


def between_parameters(layout: Sequence[Segment], num_pieces: int) -> list[tuple[int, int]]:
    """Bounds near the bounds of equal pieces, each where a parameter begins or ends."""
    ends = [0, *(segment.stop for segment in layout)]
    cuts = [min(ends, key=lambda end: abs(end - i * ends[-1] / num_pieces))
            for i in range(num_pieces + 1)]
    return [*pairwise(cuts)]


def end_to_end(segments: Sequence[Segment]) -> Iterator[Segment]:
    """The segments moved so that each begins where the one before ends."""
    start = 0
    for segment in segments:
        stop = start + segment.stop - segment.start
        yield replace(segment, start=start, stop=stop)
        start = stop


def merged_slices(segments: Sequence[Segment]) -> list[slice]:
    """The segments as slices of the array, one for each run of neighbours."""
    runs: list[slice] = []
    for segment in segments:
        if runs and runs[-1].stop == segment.start:
            runs[-1] = slice(runs[-1].start, segment.stop)
        else:
            runs.append(slice(segment.start, segment.stop))
    return runs


class Piece:
    """This rank's piece of a flat, which optimizers, clipping and checkpoints use like a slab.

    `data` and `grad` are its numbers.  In a norm the pieces of all ranks of `norm_comm` add up.
    """

    def __init__(self, flat: Flat, norm_comm: Communicator, data: Array, grad: Array):
        self.flat, self.norm_comm, self.is_copy = flat, norm_comm, flat.slab.is_copy
        self.parameters: Sequence[Tensor] = flat.parameters
        self.data, self.grad, self.has_grad = data, grad, False
        self.segments = [part for segment in flat.layout
                         if (part := overlap(segment, *flat.bounds)) is not None]

    def add(self, array: Array) -> None:
        """Add a reduced piece to the gradient."""
        array = to_device_of(array, self.grad)
        if self.has_grad:
            self.grad += array
        else:
            self.grad[...] = array
        self.has_grad = True

    def zero_grad(self) -> None:
        """Forget the gradients: the next reduction writes instead of adding."""
        self.has_grad = False
        for parameter in self.parameters:
            parameter.grad = None

    def complete_grad(self) -> Array:
        """The gradient, zeros if none was reduced since `zero_grad`."""
        if not self.has_grad:
            self.grad[...] = 0
        return self.grad


def overlap(segment: Segment, start: int, stop: int) -> Segment | None:
    """The part of a segment that lies in start … stop, counted from start; None if none does."""
    first, last = max(segment.start, start), min(segment.stop, stop)
    if first >= last:
        return None
    return replace(segment, start=first - start, stop=last - start,
                   flat_range=(first - segment.start, last - segment.start))


class Pieces(Buffers):
    """The pieces that a rank optimizes, of all flats of `whole_slabs`.

    The ranks of pp have different flats, but each has a part of every slab.  So `named` gathers the
    flats of a slab over their own ranks first.
    """

    def __init__(self, whole_slabs: Sequence[Slab], pieces: Sequence[Piece]):
        super().__init__(pieces)
        self.whole_slabs = whole_slabs

    def named(self, arrays: Sequence[Array]) -> dict[str, np.ndarray]:
        """The whole arrays: gathered flat by flat over dp and cp, then over pp, tp and ep."""
        found: dict[str, np.ndarray] = {}
        for slab in self.whole_slabs:
            here = [(piece.flat, array) for piece, array in zip(self, arrays)
                    if piece.flat.slab is slab]
            whole = np.empty(sum(flat.size for flat, _ in here), here[0][1].dtype, like=here[0][1])
            for flat, array in here:
                with flat.comm.labelled("state"):
                    gathered = all_gather(flat.comm, array, counts=flat.counts)
                for segment, moved in zip(flat.segments, flat.layout):
                    whole[segment.start:segment.stop] = gathered[moved.start:moved.stop]
            found |= slab.named(whole)
        return found


def gather_parameter(tp: Communicator | None, segment: Segment | Parameter, piece: Array,
                     ep: Communicator | None = None) -> np.ndarray:
    """The global array of a parameter; `piece` (n,) has this rank's box of it.  Collective.

    The ranks of `ep`, if given, have different experts, axis 0; the ranks of `tp` cut other axes.
    """
    values = np.array(piece).reshape(segment.shape)
    for dim, total in enumerate(segment.global_shape):
        if values.shape[dim] != total:
            comm = tp if ep is None or dim else ep
            assert comm is not None         # one of them has cut this axis
            with comm.labelled("state"):
                values = all_gather(comm, values, dim, total)
    if segment.order is None:
        return np.ascontiguousarray(values)
    unordered = np.empty_like(values)
    unordered[..., np.array(segment.order)] = values
    return unordered
