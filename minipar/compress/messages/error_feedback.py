"""Error feedback: what rounding has lost of a message is added to the next one.

    step t      c = g + e            what is owed as well
                send Q(c)
                e = c - Q(c)         what is owed from now on

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


def compensated(numbers: Array, owed: Array, codec: BlockCodec, scale: float = 1.0) -> Array:
    """The message of numbers + scale · owed; both arrays are changed in place.

    Afterwards `numbers` is what should have been sent, and scale · owed what the message lacks of
    it.  Where the message is not finite, whose step nobody takes, `owed` stays as it was.  `scale`
    is the loss's: it may be another in the next step.
    """
    numbers += owed * scale
    message = codec.encode(numbers)
    lacks = (numbers - codec.decode(message, numbers.shape[0])) / scale
    owed[...] = np.where(np.isfinite(lacks), lacks, owed)
    return message


class Debts:
    """What is owed of each array, by a key that stays the same from step to step.

    It begins at 0, is counted as communication by a ledger, and is of the size of the arrays.
    `scale` is what they are multiplied by at present.
    """

    def __init__(self):
        self.owed: dict[Hashable, Array] = {}
        self.scale = 1.0

    def message(self, key: Hashable, numbers: Array, codec: BlockCodec) -> Array:
        """The message of `numbers` and what is owed of them; see `compensated`."""
        if key not in self.owed:
            self.owed[key] = record_allocation("communication", np.zeros_like(numbers))
        return compensated(numbers, self.owed[key], codec, self.scale)
