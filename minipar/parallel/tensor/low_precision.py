"""Tensor parallelism in a narrow format: activations and their gradients are sent as codes.

Each round of the ring rounds the partial sums over tp once more.
"""

from ...autograd import Tensor
from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import all_gather, all_reduce, reduce_scatter
from ...number_formats import Format
from ..conjugate import conjugate
from .layers import TensorSplit
from .sequence import TOKENS, SequenceSplit


class LowPrecisionTensorSplit(TensorSplit):
    """A TensorSplit whose messages are codes of `fmt`."""

    def __init__(self, tp: Communicator, fmt: Format):
        super().__init__(tp)

        def sum_codes(comm: Communicator, array: Array) -> Array:
            return fmt.decode(all_reduce(comm, fmt.encode(array), fmt.add, "ring"))
        self._copy_to, self._reduce_from = conjugate(lambda comm, array: array, sum_codes)

    def enter(self, x: Tensor) -> Tensor:
        """The same x; the gradients of all ranks are summed as codes."""
        return self._copy_to.apply(x, comm=self.tp)

    def leave(self, y: Tensor) -> Tensor:
        """The sum of all ranks' y, as codes."""
        return self._reduce_from.apply(y, comm=self.tp)


class LowPrecisionSequenceSplit(SequenceSplit):
    """A SequenceSplit whose messages are codes of `fmt`."""

    def __init__(self, tp: Communicator, fmt: Format):
        super().__init__(tp)

        def gather(comm: Communicator, array: Array, dim: int, total: int) -> Array:
            return fmt.decode(all_gather(comm, fmt.encode(array), dim, total))

        def scatter(comm: Communicator, array: Array, dim: int, total: int) -> Array:
            return fmt.decode(reduce_scatter(comm, fmt.encode(array), dim, fmt.add, "ring"))
        self._all_gather, self._reduce_scatter = conjugate(gather, scatter)

    def enter(self, x: Tensor) -> Tensor:
        """All tokens, gathered as codes."""
        total = x.shape[TOKENS] * self.tp.size
        return self._all_gather.apply(x, comm=self.tp, dim=TOKENS, total=total)

    def leave(self, y: Tensor) -> Tensor:
        """This rank's tokens of the sum, as codes."""
        return self._reduce_scatter.apply(y, comm=self.tp, dim=TOKENS, total=y.shape[TOKENS])
