"""Check derivatives against finite differences.

Let y = f(x), let r be a fixed array of the shape of y, and e the unit vector of one element of x.
The derivative of Σ r y by this element is (Σ r f(x + ε e) - Σ r f(x - ε e)) / 2ε, up to O(ε²).
"""

from collections.abc import Callable

import numpy as np

from .function import no_grad
from .tensor import Tensor


def gradcheck(function: Callable[..., Tensor], *inputs: Tensor, epsilon: float = 1e-6,
              tolerance: float = 1e-7, seed: int = 0) -> float:
    """The worst error of an element of the gradients of `function(*inputs)`.

    It is relative to the largest element of its gradient, or to 1 if that is larger.  Every element
    of every input that requires a gradient is moved by ± epsilon, so give small inputs, of float64.
    Raises AssertionError, which names input and element, for an error above `tolerance`.
    """
    checked = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    for x in checked:
        if x.dtype != np.float64:
            raise TypeError(f"gradcheck needs float64 (an error of 1e-16), not {x.dtype}")
        x.grad = None
    out = function(*inputs)
    direction = np.random.default_rng(seed).standard_normal(out.shape)
    out.backward(direction)

    def value() -> float:
        with no_grad():
            return float(np.sum(function(*inputs).data * direction))

    worst = 0.0
    for number, x in enumerate(checked):
        gradient = np.zeros_like(x.data) if x.grad is None else x.grad
        if gradient.shape != x.shape:
            raise AssertionError(f"the gradient of input {number} has shape {gradient.shape}, the "
                                 f"input {x.shape}")
        scale = max(1.0, float(np.max(np.abs(gradient), initial=0)))
        for index in np.ndindex(x.shape):
            kept = x.data[index]
            x.data[index] = kept + epsilon
            above = value()
            x.data[index] = kept - epsilon
            below = value()
            x.data[index] = kept
            difference = (above - below) / (2 * epsilon)
            error = abs(difference - gradient[index]) / scale
            worst = max(worst, error)
            if not error <= tolerance:
                raise AssertionError(
                    f"the gradient of input {number} at {index} is {gradient[index]:.9g}, finite "
                    f"differences say {difference:.9g} (error {error:.2g} > {tolerance:g})")
    return worst
