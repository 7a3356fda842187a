"""Two codecs, numbers to send, and the largest error that rounding may make."""

from collections.abc import Sequence

import numpy as np
import pytest

from minipar.parallel.wire_formats.quantized.block_codec import BlockCodec

EIGHT, FOUR = BlockCodec(), BlockCodec(bits=4, size=32)
CODECS = pytest.mark.parametrize("codec", [EIGHT, FOUR], ids=["int8", "int4"])


def draw(p: int, n: int, seed: int = 0) -> np.ndarray:
    """The numbers of each rank; their sizes differ by a factor of up to a thousand."""
    random = np.random.default_rng(seed)
    return (random.standard_normal((p, n)) * 10.0**random.uniform(-3, 0, n)).astype(np.float32)


def half_steps(numbers: np.ndarray, codec: BlockCodec, counts: Sequence[int]) -> np.ndarray:
    """The largest rounding error of each number, in blocks that begin with each piece."""
    found = np.zeros(numbers.shape)
    start = 0
    for n in counts:
        for first in range(start, start + n, codec.size):
            block = slice(first, min(first + codec.size, start + n))
            found[block] = np.abs(numbers[block]).max() / (2**codec.bits - 2) * (1 + 1e-5)
        start += n
    return found
