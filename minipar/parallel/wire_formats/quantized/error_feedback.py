"""Error feedback: the rounding error of one message is added to the next one.

    step t      c = g + e            the gradient, and the residual of the step before
                send Q(c)
                e = c - Q(c)         the new residual

The messages of all steps add up to all gradients less one residual, which does not grow with t:
Σ Q(c) = Σ g - e.  Without error feedback, a gradient that stays below half a step of the grid is
never sent at all.

Seide et al., 1-bit stochastic gradient descent (2014); Karimireddy et al., Error feedback fixes
SignSGD (2019), arXiv 1901.09847.
"""

import numpy as np

from ....backend import Array, record_allocation, to_device_of
from .block_codec import BlockCodec


def encode_with_feedback(numbers: Array, residual: Array, codec: BlockCodec,
                         scale: float = 1.0) -> Array:
    """The message of numbers + scale · residual; both arrays are changed in place.

    Afterwards `numbers` holds the sum that should have been sent, and scale · residual the rounding
    error of its message.  Where the error is not finite, `residual` stays as it was: the loss
    scaler skips such a step.  `scale` is the loss scale, which may change from step to step.
    """
    numbers += residual * scale
    message = codec.encode(numbers)
    error = (numbers - codec.decode(message, numbers.shape[0])) / scale
    residual[...] = np.where(np.isfinite(error), error, residual)
    return message


class ErrorFeedback:
    """Keeps one residual for each array, by a key that is the same in every step, and every run.

    A residual starts at 0, has the size of its array, and counts as communication in a ledger.
    `scale` is the present loss scale.
    """

    def __init__(self):
        self.residuals: dict[str, Array] = {}
        self.scale = 1.0

    def message(self, key: str, numbers: Array, codec: BlockCodec) -> Array:
        """Encode `numbers` plus the residual of `key`, and update that residual."""
        residual = self.residuals.get(key)
        if residual is None or residual.shape != numbers.shape:
            self.residuals[key] = record_allocation("communication", np.zeros_like(numbers))
        self.residuals[key] = to_device_of(self.residuals[key], numbers)  # a loaded one is on host
        return encode_with_feedback(numbers, self.residuals[key], codec, self.scale)
