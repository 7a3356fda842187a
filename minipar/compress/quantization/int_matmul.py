"""Exact matrix products of 8-bit integers, and the corrections for their zero points.

    Σ (a - z)(b - y)  =  Σ a b  -  …         sums over the inner axis, K; codes a, b of 8 bits

So grids with zero points z and y need no wider codes: one product of the codes is corrected by
their row and column sums.  Then x w ≈ scale_x scale_w Σ (a - z)(b - y).  If |x - x̂| ≤ scale_x / 2
and |w - ŵ| ≤ scale_w / 2, the error of a product of length K is at most

    K (|w| scale_x + |x| scale_w) / 2 + K scale_x scale_w / 4       |x|, |w| their largest.

NumPy multiplies integer matrices without BLAS, about a hundred times slower than float matrices.
So the codes are multiplied as float32, in blocks of the inner axis so short that no sum exceeds
2²⁴.  Float32 represents all integers up to there, so such sums are exact in any order.  The sums of
the blocks are added in int32.  This gives the right integers, but is not faster than a product of
floats; hardware that multiplies int8 is.

Source: Jacob et al. (2018), sections 2.2 and 2.3.
"""

import numpy as np

from ...backend import Array

EXACT = 1 << 24                 # float32 represents all integers up to here
LARGEST = {np.dtype(np.int8): 128, np.dtype(np.uint8): 255}


def int_matmul(a: Array, b: Array) -> Array:
    """a (n, K) @ b (K, m), codes of int8 or uint8 → int32 (n, m), exactly.

    Raises TypeError for other types, ValueError where int32 could overflow.
    """
    if a.dtype not in LARGEST or b.dtype not in LARGEST:
        raise TypeError(f"codes are int8 or uint8, not {a.dtype} and {b.dtype}")
    largest = LARGEST[a.dtype] * LARGEST[b.dtype]
    inner = a.shape[1]
    if inner * largest >= 1 << 31:
        raise ValueError(f"a sum of {inner} products of up to {largest} may exceed int32: split it")
    out = np.zeros((a.shape[0], b.shape[1]), np.int32, like=a)
    block = EXACT // largest
    for start in range(0, inner, block):
        part = slice(start, start + block)
        out += (a[:, part].astype(np.float32) @ b[part].astype(np.float32)).astype(np.int32)
    return out


def affine_matmul(a: Array, a_zero: Array, b: Array, b_zero: Array) -> Array:
    """Σ (a - a_zero)(b - b_zero) over the inner axis: int64 (n, m), exactly.

    a (n, K), b (K, m) are codes; a_zero is one zero point or (n, 1), b_zero one or (1, m).  The
    result is int64 because a code can differ from its zero point by 255, and 33,026 products of
    255 · 255 overflow int32.
    """
    # Σ (a - z)(b - y)  =  Σ a b  -  z Σ b  -  y Σ a  +  K z y
    a_zero, b_zero = np.asarray(a_zero).astype(np.int64), np.asarray(b_zero).astype(np.int64)
    product = int_matmul(a, b).astype(np.int64)
    product -= a_zero * b.sum(axis=0, keepdims=True, dtype=np.int64)
    product -= b_zero * a.sum(axis=1, keepdims=True, dtype=np.int64)
    product += a.shape[1] * a_zero * b_zero
    return product
