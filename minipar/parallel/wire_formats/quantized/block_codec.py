"""Encode an array as a short message: small integers, and one float32 scale for every 256 of them.

    numbers    [ 256 numbers      │ 256 numbers      │ the rest ]        float32, 4 bytes each
    scales          max|x| / 127       max|x| / 127     max|x| / 127     float32
    message    [ codes, bits / 8 bytes each                        │ scales ]

The picture is for 8 bits: a number takes 1 + 4 / 256 bytes, 3.94 times fewer than 4 (with blocks of
128, 3.88 times fewer).  The error |x - x̂| is at most scale / 2, so a large number reduces the
precision of its own block only.  A block with an infinity or a NaN gets the scale NaN and decodes
to NaN throughout: no overflow is hidden.

Dettmers et al., 8-bit Optimizers via Block-wise Quantization (2022), arXiv 2110.02861.
"""

from dataclasses import dataclass

import numpy as np

from ....backend import Array
from ....number_formats.affine import LARGEST, IntGrid
from ....number_formats.packing import in_groups, pack, unpack


@dataclass(frozen=True)
class BlockCodec:
    """Symmetric integers of 2 to 8 `bits`, one scale per block of `size` numbers.

    Raises ValueError for other numbers of bits, and for empty blocks.
    """

    bits: int = 8
    size: int = 256

    def __post_init__(self):
        IntGrid(self.bits)
        if self.size < 1:
            raise ValueError(f"a block has at least one number, not {self.size}")

    def num_bytes(self, num_numbers: int) -> int:
        """The bytes of the message of `num_numbers` numbers."""
        return -(-num_numbers * self.bits // 8) + 4 * -(-num_numbers // self.size)

    def encode(self, numbers: Array) -> Array:
        """The message (uint8) of numbers (n,)."""
        grid, n = IntGrid(self.bits), numbers.shape[0]
        blocks = in_groups(numbers, self.size)                          # (⌈n / size⌉, size)
        peak = np.max(np.abs(blocks), axis=1, keepdims=True)
        is_good = peak <= LARGEST                                       # NaN is not
        peak = np.where(is_good, peak, 0)
        scale, zero = grid.calculate_qparams(-peak, peak)
        codes = grid.encode(np.where(is_good, blocks, 0), scale, zero)
        packed = pack(codes.reshape(codes.size)[:n].view(np.uint8), self.bits)
        scale = np.where(is_good, scale, np.nan).astype(np.float32)
        return np.concatenate([packed, scale.reshape(scale.size).view(np.uint8)])

    def decode(self, message: Array, num_numbers: int) -> Array:
        """The numbers (n,), float32, that a message encodes."""
        num_packed = -(-num_numbers * self.bits // 8)
        grid = IntGrid(self.bits)
        codes = grid.from_bits(unpack(message[:num_packed], self.bits, num_numbers))
        blocks = in_groups(codes, self.size)
        scale = message[num_packed:].copy().view(np.float32)            # a copy is aligned
        numbers = grid.decode(blocks, scale[:, None], 0)
        return numbers.reshape(numbers.size)[:num_numbers]


INT8 = BlockCodec()
