"""Rounding whole arrays to fewer digits, by arithmetic on floats or on their bits.

`Format.round` (format.py) chooses between these ways, and is what the library calls.

By the adder.  The floats between c and 2c are spaced c · 2⁻²³ in float32 (2⁻⁵² in float64), and an
addition is rounded to nearest, ties to even.  So (x + c) - c is x, rounded to the spacing that c
chooses:

    x      1.0101101₂ · 2ᴱ                          keep m = 3 digits: c = 2^(E + 23 - 3)
    x + c  1.00000000000000000001011₂ · 2^(E+20)    here the adder rounded
    - c    1.011₂ · 2ᴱ

Subnormal numbers have the spacing of the smallest normal one, 2^e_min: E is at least e_min.

By the bits.  The bits of positive floats, read as integers, count the floats upwards.  So dropping
the last bits rounds down; adding half of the last kept place first rounds to nearest.  A carry runs
into the exponent, which is right.  This way is for formats whose c would be infinite.

By chance.  Stochastic rounding takes the neighbour below or above, with probabilities that make the
mean the number itself.  Many small steps then add up; rounding to nearest would drop each of them.

Source: IEEE 754-2019, 4.3.1; Croci et al., Stochastic rounding: implementation, error analysis and
applications (2022).
"""

import numpy as np

from ..backend import Array, asarray_like

# The floats that can be rounded: their digits after the point, and an integer type for their bits.
FLOATS = {np.dtype(np.float32): (23, np.dtype(np.uint32)),
          np.dtype(np.float64): (52, np.dtype(np.uint64))}


def scale_of(size: Array, e_min: int, e_max: int) -> Array:
    """2ᴱ, the power of two at or below each `size` ≥ 0, with E kept in e_min … e_max."""
    digits, word = FLOATS[size.dtype]
    exponents = (1 << 8 * word.itemsize - 1) - (1 << digits)        # the bits of all exponents
    scale = (size.view(word) & exponents).view(size.dtype)
    return np.clip(scale, 2.0**e_min, 2.0**e_max, out=scale)


def nearest_by_adder(size: Array, scale: Array, mantissa_bits: int) -> Array:
    """`size` ≥ 0 to the nearest multiple of scale · 2^-mantissa_bits, ties to the even multiple."""
    digits, _ = FLOATS[size.dtype]
    c = scale * 2.0 ** (digits - mantissa_bits)
    rounded = size + c
    rounded -= c
    return rounded


def count_by_adder(size: Array, scale: Array, e_min: int, mantissa_bits: int) -> Array:
    """The number of positive numbers, spaced as in `nearest_by_adder`, up to the nearest one.

    The last bits of x + c count multiples of the spacing.  Each step of E adds 2^mantissa_bits
    numbers, and E - e_min is the difference of two exponents.  Overwrites `scale`.
    """
    digits, word = FLOATS[size.dtype]
    drop = digits - mantissa_bits
    scale *= 2.0**drop
    count, c = (size + scale).view(word), scale.view(word)
    count -= c
    c -= int(size.dtype.type(2.0 ** (e_min + drop)).view(word))
    c >>= drop
    count += c
    return count


def copy_sign(size: Array, signed: Array, out: Array) -> None:
    """Write each `size` ≥ 0 with the sign of `signed` into `out`, by bits (np.copysign is slow)."""
    _, word = FLOATS[size.dtype]
    bits = out.view(word)
    np.bitwise_and(signed.view(word), 1 << 8 * word.itemsize - 1, out=bits)
    bits |= size.view(word)


def nearest_by_bits(bits: Array, drop: int) -> Array:
    """`bits`, unsigned integers, rounded to multiples of 2^drop: to the nearest, ties to even."""
    rounded = bits >> drop
    rounded &= 1                                # 1 where the last place that stays is odd
    rounded += (1 << (drop - 1)) - 1            # just less than half: a tie goes up where it is odd
    rounded += bits
    rounded >>= drop
    rounded <<= drop
    return rounded


def step_by_chance(size: Array, nearest: Array, spacing: Array,
                   random: np.random.Generator) -> Array:
    """`nearest`, or the neighbour at the other side of `size`, so that the mean is `size`.

    Random numbers are drawn on the host, one for each number in order, so they are the same
    everywhere.
    """
    # the neighbour with probability d = |size - nearest| / spacing
    away = size - nearest                       # exact
    away /= spacing
    chance = asarray_like(random.random(size.shape, dtype=size.dtype), size)
    step = np.copysign(spacing, away)
    step *= chance < np.abs(away)
    step += nearest
    return step
