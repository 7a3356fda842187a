"""Tensor parallelism in 2 bytes a number: activations and their gradients are sent as codes.

Partial sums over tp are rounded once more, in each round of the ring.
"""

from ...autograd import Tensor
from ...comm import Communicator
from ...number_formats import Format
from ..low_precision_wire import all_gather_and_reduce_scatter, copy_to_and_reduce_from
from .layers import TensorSplit
from .sequence import TOKENS, SequenceSplit


class LowPrecisionTensorSplit(TensorSplit):
    """A TensorSplit whose messages are codes of `fmt`."""

    def __init__(self, tp: Communicator, fmt: Format):
        super().__init__(tp)
        self._copy_to, self._reduce_from = copy_to_and_reduce_from(fmt)

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
        self._all_gather, self._reduce_scatter = all_gather_and_reduce_scatter(fmt)

    def enter(self, x: Tensor) -> Tensor:
        """All tokens, gathered as codes."""
        total = x.shape[TOKENS] * self.tp.size
        return self._all_gather.apply(x, comm=self.tp, dim=TOKENS, total=total)

    def leave(self, y: Tensor) -> Tensor:
        """This rank's tokens of the sum, as codes."""
        return self._reduce_scatter.apply(y, comm=self.tp, dim=TOKENS, total=y.shape[TOKENS])
