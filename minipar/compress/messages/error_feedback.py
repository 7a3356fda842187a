"""Error feedback: what rounding has lost of a message is added to the next one.

    step t      c = g + e            what is residual as well
                send Q(c)
                e = c - Q(c)         what is residual from now on

All that was sent until step t is the sum of all gradients, but for one e, whose size does not grow
with t:  Σ Q(c) = Σ g - e.  Without it a gradient that is smaller than half a step of the grid, in
every step, is never sent at all.

Seide et al., 1-bit stochastic gradient descent (2014); Karimireddy et al., Error feedback fixes
SignSGD (2019), arXiv 1901.09847.
"""

from collections.abc import Hashable

import numpy as np

from ...backend import Array, record_allocation
from .block_codec import BlockCodec


def encode_with_feedback(numbers: Array, residual: Array, codec: BlockCodec,
                         scale: float = 1.0) -> Array:
    """The message of numbers + scale · residual; both arrays are changed in place.

    Afterwards `numbers` holds the sum that should have been sent, and scale · residual the rounding
    error of its message.  Where the message is not finite, the step is skipped and `residual` stays
    as it was.  `scale` is the loss scale, which may change from step to step.
    """
    numbers += residual * scale
    message = codec.encode(numbers)
    error = (numbers - codec.decode(message, numbers.shape[0])) / scale
    residual[...] = np.where(np.isfinite(error), error, residual)
    return message


class ErrorFeedback:
    """What is residual of each array, by a key that stays the same from step to step.

    It begins at 0, is counted as communication by a ledger, and is of the size of the arrays.
    `scale` is what they are multiplied by at present.
    """

    def __init__(self):
        self.residual: dict[Hashable, Array] = {}
        self.scale = 1.0

    def message(self, key: Hashable, numbers: Array, codec: BlockCodec) -> Array:
        """The message of `numbers` and what is residual of them; see `encode_with_feedback`."""
        if key not in self.residual:
            self.residual[key] = record_allocation("communication", np.zeros_like(numbers))
        return encode_with_feedback(numbers, self.residual[key], codec, self.scale)
