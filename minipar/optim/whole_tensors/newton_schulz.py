"""The orthogonalization of Muon: a matrix with its singular values made about 1, by products alone.

    X = U / max(‖U‖, 1e-7)          five times:  A = XXᵀ,  X ← aX + (bA + cA²)X

A step takes each singular value s of X to a s + b s³ + c s⁵ and keeps the singular vectors.  With
(a, b, c) = (3.4445, -4.775, 2.0315) all but tiny ones end between about 0.7 and 1.2.  They need not
end at 1: these numbers make small values grow fastest.  Jordan et al. 2024; torch.optim.Muon.
"""

import math
from collections.abc import Callable

import numpy as np

from ...backend import Array

COEFFICIENTS, NUM_ITERATIONS, SMALLEST_NORM = (3.4445, -4.775, 2.0315), 5, 1e-7
FACTORS: dict[str, Callable[[int, int], float]] = {         # of a matrix (in, out)
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    "original": lambda rows, columns: math.sqrt(max(1, columns / rows))}


def newton_schulz(u: Array) -> Array:
    """The matrices u (..., rows, columns) with singular values near 1; zeros stay zeros."""
    a, b, c = COEFFICIENTS
    is_tall = u.shape[-2] > u.shape[-1]
    x = u.swapaxes(-1, -2) if is_tall else u
    x = x / np.maximum(np.sqrt(np.sum(x * x, axis=(-2, -1), keepdims=True)), SMALLEST_NORM)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.swapaxes(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.swapaxes(-1, -2) if is_tall else x
