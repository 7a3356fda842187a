"""ZeRO-2: optimizer states and gradients are sharded (Rajbhandari et al. 2020).

    backward      ▓▓ h.2 ▓▓ ▓▓ h.1 ▓▓ ▓▓ h.0 ▓▓
    whole         ████████▁ ████████▁ ████████▁       one whole gradient at a time,
    reduced              ░░        ░░        ░░       then 1/p of it on each rank

The gradient of a flat, here a bucket of parameters, exists from its first contribution until it is
reduced.  Then each rank keeps its piece, 1/p.  When the next flat's first gradient comes, backward
waits until this reduction has ended; so little of the reduction is hidden.  Gradients take Ψ/p
elements and one whole flat, instead of Ψ.  A flat whose last gradient comes late (a tied embedding;
with tp, parameters that are not cut) stays whole beside the flat in progress.  There is no room to
add up whole gradients.  So the gradients of each of m microbatches are reduced, and a rank sends
(m + 1) Ψ (p-1)/p elements.  arXiv 1910.02054, section 5.2.
"""

from functools import partial

import numpy as np

from ...backend import Array, allocate_zeros, record_allocation
from ...backend.mapped_file import page_out
from ...comm.work import start_work
from ...nn.slab import Segment
from ..flats import Flat, Piece
from .zero1 import ZeRO1


class ZeRO2(ZeRO1):
    """Optimizer states and gradients are sharded: a flat's gradient is freed once reduced."""

    reduces_each_backward = True

    def place(self) -> None:
        """Cut the slabs into pieces, and free the whole gradients."""
        self.whole: dict[Flat, Array] = {}              # gradients that backward is at
        self.not_summed: dict[Flat, Array] = {}         # pieces, not yet summed over `replicate`
        super().place()
        for flat in self.flats:
            for parameter, segment in zip(flat.parameters, flat.layout):
                parameter.slot.get_grad_buffer = partial(self._buffer, flat, segment)
        for slab in self.stages.whole_slabs:
            slab.drop_grad()

    def make_piece(self, flat: Flat) -> Piece:
        """This rank's piece of a flat, whose gradient has memory of its own."""
        data = self.own_data(flat)
        grad = allocate_zeros("gradients", data)
        page_out(data, grad)        # offloaded to a file, they leave memory until used; others stay
        return Piece(flat, self.norm_ranks(flat.slab), data, grad)

    def own_data(self, flat: Flat) -> Array:
        """This rank's piece of the parameters."""
        return flat.mine(flat.slab.data)

    def _buffer(self, flat: Flat, segment: Segment) -> Array:
        """Where backward puts a parameter's gradient: made at the flat's first contribution."""
        if flat not in self.whole:
            self._wait()                    # so that its whole gradient is gone before this one
            whole = np.empty(flat.size, self.like.dtype, like=self.like)
            self.whole[flat] = record_allocation("gradients", whole)
        return self.whole[flat][segment.start:segment.stop].reshape(segment.shape)

    def reduce(self, flat: Flat) -> None:
        """Begin the reduce-scatter of a flat's gradient; the whole is freed when that has ended."""
        whole = self.take(flat)
        self._wait()
        work = start_work(self.wire.of(flat).reduce_scatter, flat.comm, whole, counts=flat.counts,
                          in_place=True)
        self.works.append((flat, work))

    def take(self, flat: Flat) -> Array:
        """A flat's whole gradient, zeros where none came; nothing else refers to it any more."""
        flat.fill_missing()
        for parameter in flat.parameters:
            parameter.slot.grad = None
        return self.whole.pop(flat)

    def _wait(self) -> None:
        """Wait for the reduction under way, at most one, and keep this rank's piece."""
        while self.works:
            flat, work = self.works.pop()
            self.add_to_piece(flat, work.wait())

    def add_to_piece(self, flat: Flat, piece: Array) -> None:
        """Add a reduced piece to the gradient, or to what the ranks of `replicate` will sum."""
        if flat.copies.size == 1:
            self.piece_of[flat].add(piece)
            page_out(self.piece_of[flat].grad)
        elif flat in self.not_summed:
            self.not_summed[flat] += piece
        else:
            self.not_summed[flat] = record_allocation("communication", piece.copy())

    def finish(self) -> None:
        """Wait for all reductions; sum the pieces over the ranks that have the same ones.

        This does not call ZeRO-1's `finish`, which would reduce all flats again.  Here each
        backward has begun to reduce all that it completes, and pieces that the ranks of `replicate`
        still have to sum are kept apart.
        """
        self._wait()
        for flat in [*self.not_summed]:
            piece = self.not_summed.pop(flat)
            self.wire.of((flat, "copies")).all_reduce(flat.copies, piece, out=piece)
            self.piece_of[flat].add(piece)
            page_out(self.piece_of[flat].grad)
