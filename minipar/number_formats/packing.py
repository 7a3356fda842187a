"""Codes of fewer than 8 bits, without gaps in bytes.

    4 bits   bbbbaaaa                      two codes a byte, the first in the low half
    6 bits   bbaaaaaa ccccbbbb ddddddcc    four codes in three bytes

Bit k of code i is bit i·bits + k of the bytes, lowest first.  This is the order of little-endian
machines, and of PyTorch's and CUDA's pairs of 4-bit numbers.
"""

import math

import numpy as np

from ..backend import Array

BYTE = np.dtype(np.uint8)


def _group(bits: int) -> tuple[int, int, np.dtype]:
    """(codes, bytes) of the smallest group without gaps, and an integer type that holds it."""
    if not 1 <= bits <= 8:
        raise ValueError(f"codes of 1 to 8 bits are packed, not of {bits}")
    together = math.lcm(bits, 8)
    return together // bits, together // 8, np.min_scalar_type((1 << together) - 1)


def in_groups(rows: Array, size: int) -> Array:
    """(…, n) as (…, ⌈n / size⌉, size), the last group filled up with zeros."""
    length = rows.shape[-1]
    num_groups = -(-length // size)
    if num_groups * size != length:
        padded = np.zeros((*rows.shape[:-1], num_groups * size), rows.dtype, like=rows)
        padded[..., :length] = rows
        rows = padded
    return rows.reshape(*rows.shape[:-1], num_groups, size)


def pack(codes: Array, bits: int) -> Array:
    """The bytes (uint8, (…, ⌈n·bits/8⌉)) of the lowest `bits` bits of the codes (…, n).

    Raises ValueError unless `bits` is 1 to 8.
    """
    num_codes, num_bytes, word = _group(bits)
    groups = in_groups(codes, num_codes)
    whole = (groups[..., 0] & ((1 << bits) - 1)).astype(word)
    for i in range(1, num_codes):
        whole |= (groups[..., i] & ((1 << bits) - 1)).astype(word) << (i * bits)
    packed = np.stack([(whole >> (8 * i)).astype(BYTE) for i in range(num_bytes)], axis=-1)
    packed = packed.reshape(*packed.shape[:-2], packed.shape[-2] * num_bytes)
    return packed[..., :-(-codes.shape[-1] * bits // 8)]


def unpack(packed: Array, bits: int, length: int) -> Array:
    """The `length` codes (uint8, (…, length)) that `pack` made into these bytes.

    Raises ValueError if the bytes are too many or too few for them.
    """
    num_codes, num_bytes, word = _group(bits)
    if packed.shape[-1] != -(-length * bits // 8):
        raise ValueError(f"{length} codes of {bits} bits are {-(-length * bits // 8)} bytes, not "
                         f"{packed.shape[-1]}: say how many were packed")
    groups = in_groups(packed, num_bytes)
    whole = groups[..., 0].astype(word)
    for i in range(1, num_bytes):
        whole |= groups[..., i].astype(word) << (8 * i)
    codes = np.stack([((whole >> (i * bits)) & ((1 << bits) - 1)).astype(BYTE)
                      for i in range(num_codes)], axis=-1)
    codes = codes.reshape(*codes.shape[:-2], codes.shape[-2] * num_codes)
    return codes[..., :length]
