"""ZeRO-1: data parallelism whose optimizer states are sharded (Rajbhandari et al. 2020).

    per rank            parameters   gradients   optimizer states        sent, for m microbatches
    data parallelism        4Ψ          4Ψ            8Ψ                  2Ψ (p-1)/p
    ZeRO-1                  4Ψ          4Ψ            8Ψ/p                2Ψ (p-1)/p
    ZeRO-2                  4Ψ          4Ψ/p          8Ψ/p            (m + 1)Ψ (p-1)/p
    ZeRO-3                  4Ψ/p        4Ψ/p          8Ψ/p                3mΨ (p-1)/p

Memory is in bytes, in float32 with Adam's two moments; messages are in elements, on rings.  On a
mesh with pp or tp, Ψ counts the parameters that this rank has, and p the ranks along dp and cp.

An all-reduce is a reduce-scatter and an all-gather.  ZeRO-1 puts the optimizer's step between the
two, on 1/p of everything, and sends not one byte more.

Every bucket is cut into p pieces, so that all ranks take an equal part in every reduction (with
`whole_parameters` a nearly equal one).
arXiv 1910.02054, section 5.1.
"""

from collections.abc import Iterator, Sequence

from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import all_gather
from ...comm.work import start_work
from ...nn import Slab
from ...nn.slab import Buffers
from ..data.ddp import DistributedDataParallel
from ..errors import whole_gradients_error
from ..flats import Flat, Piece, Pieces


class ZeRO1(DistributedDataParallel):
    """Optimizer states are sharded: each rank steps on its piece of every flat.

    The ranks of the mesh's axis `replicate` have the same pieces, whose gradients they sum.  With
    `whole_parameters` each rank owns whole parameters, for an optimizer that needs matrices (Muon).
    """

    def place(self) -> None:
        """Cut the slabs into flats, and these into pieces, which the optimizer steps on.

        Raises ValueError for a wire that needs whole gradients.
        """
        if self.wire.waits_for_all or not self.wire.sums_pieces:
            raise whole_gradients_error(type(self.wire).__name__)
        super().place()
        self.piece_of = {flat: self.make_piece(flat) for flat in self.flats_of_slabs}
        self.slabs = Pieces(self.stages.whole_slabs, [*self.piece_of.values()])
        self.model.slabs = Buffers()    # their gradients are complete only in this rank's pieces

    def make_flat(self, slab: Slab, members: Sequence[int]) -> Flat:
        """These parameters of a slab as a flat, cut over dp and cp; `replicate` has copies."""
        return Flat(slab, members, self.ranks_of(slab, *self.summed_over),
                    self.along("replicate"), self.whole_parameters)

    def make_piece(self, flat: Flat) -> Piece:
        """This rank's piece of a flat, whose numbers are a part of the slab's."""
        return Piece(flat, self.norm_ranks(flat.slab), flat.mine(flat.slab.data),
                     flat.mine(flat.slab.grad))

    def norm_ranks(self, slab: Slab) -> Communicator:
        """The ranks over which a norm is summed, which now include those with different pieces."""
        return self.along("pp", "dp", "cp", *["tp"] * bool(slab.tp))

    def reduce(self, flat: Flat) -> None:
        """Begin the reduce-scatter of a flat's gradient: the sum arrives in its piece."""
        flat.fill_missing()
        self.piece_of[flat].has_grad = True
        work = start_work(self.wire.of(flat).reduce_scatter, flat.comm, flat.grad,
                          counts=flat.counts, in_place=True)
        self.works.append((flat, work))

    def finish(self) -> None:
        """Reduce what is left; wait for all; sum the pieces over the ranks with the same piece."""
        super().finish()
        for flat in self.flats:
            if flat.copies.size > 1:
                grad = self.piece_of[flat].grad
                self.wire.of((flat, "copies")).all_reduce(flat.copies, grad, out=grad)

    def shared_gradients(self) -> Iterator[tuple[Communicator, Array]]:
        """The pieces of the gradients that several stages have."""
        for among, slab in self.stages.shared:
            for piece in (piece for piece in self.slabs if piece.flat.slab is slab):
                gradient, piece.has_grad = piece.complete_grad(), True     # or others have one
                yield among, gradient

    def parameters_changed(self) -> None:
        """Give every rank the pieces of all ranks."""
        for flat in self.flats:
            all_gather(flat.comm, self.piece_of[flat].data, counts=flat.counts, out=flat.data)
