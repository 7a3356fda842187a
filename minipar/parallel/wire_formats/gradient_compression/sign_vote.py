"""A vote of signs: the ranks vote on the direction of each number.

    u ← β u + (1 - β) g          each rank's momentum
    direction = sign Σ sign(u)   1, 0 or -1: 0 on a tie, and where all ranks have 0

There is no scale and no error feedback: the size of a gradient is not sent at all.  Fewer than half
of the ranks, however wrong, cannot turn a number of whose sign the others agree.  A rank sends its
votes on a piece to the owner of the piece, who counts them and tells all ranks the result.  One bit
could not say 0, and an unused number would drift.  So a code has two bits, and a rank sends
2 · 2(p-1)/p · n/8 bytes for n numbers.  The wire gives the direction to an SGD without momentum.

Bernstein et al. 2019, signSGD with majority vote, arXiv 1810.05291.
"""

from itertools import accumulate

import numpy as np

from ....comm import Communicator
from ....comm.collectives import all_gather, chunk_bounds
from .signs import to_owners
from .tensor_wire import Tensors, TensorWire, joined, parted
from .terngrad import decode, encode


class SignVote(TensorWire):
    """Sums no gradients: the direction of each number is the sign with more votes."""

    has_momentum = hides_nan = True

    def __init__(self, wire_momentum: float = 0.9):
        super().__init__()
        self.momentum = wire_momentum

    def combine(self, comm: Communicator, tensors: Tensors, step: int) -> tuple[Tensors, Tensors]:
        kept = {f"{name}/u": self.momentum * self.remembered(f"{name}/u", g)
                + (1 - self.momentum) * g for name, g in tensors.items()}
        signs = np.sign(joined(kept))
        bounds = chunk_bounds(signs.shape[0], comm.size)
        counts = [stop - start for start, stop in bounds]
        ballots = to_owners(comm, [encode(signs[start:stop]) for start, stop in bounds])
        votes = sum(decode(ballot, counts[comm.rank], signs) for ballot in ballots)
        sizes = [-(-n // 4) for n in counts]
        told = all_gather(comm, encode(np.sign(votes)), algorithm="ring", counts=sizes)
        answers = np.split(told, [*accumulate(sizes)][:-1])
        return parted(np.concatenate([decode(answer, n, signs) for answer, n in
                                      zip(answers, counts)]), tensors), kept
