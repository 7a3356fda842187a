"""Random numbers by name: a draw depends on the seed and its purpose, not on the rank or the time.

    generator(seed, "h.0.attn.c_attn.weight")   the same numbers on every rank, layout and platform

Dropout masks come from one endless stream of 16-bit numbers for each (seed, step, layer).  Sample i
of the global batch owns the numbers i·size … (i+1)·size - 1, where size is its number of elements:

    stream   | sample 0     | sample 1     | sample 2     | …
                              └ a rank jumps to its samples, or to its part of each of them

Philox computes the k-th number from k alone, so a jump costs nothing.  Every layout of a model
drops the same elements as one process, and recomputing a layer in backward needs no saved state.

Source: Salmon, Moraes, Dror & Shaw, Parallel random numbers: as easy as 1, 2, 3 (2011).
"""

import json
import math
import operator
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

NUMBERS_PER_COUNT = 16      # one count of Philox makes 256 bits: sixteen 16-bit numbers


def _key(seed: int, *names: str | int) -> int:
    """128 bits that depend on the seed and every name; Python's hash() would differ in each run."""
    try:
        plain = [n if isinstance(n, str) else int(operator.index(n)) for n in (seed, *names)]
    except TypeError:
        raise key_error((seed, *names)) from None
    # JSON keeps 1 apart from "1", and ("a", "b") from ("ab",).
    return int.from_bytes(blake2b(json.dumps(plain).encode(), digest_size=16).digest(), "little")


def key_error(key: tuple) -> ValueError:
    """The error for a seed or names of a wrong type."""
    return ValueError(f"a seed is an integer and names are strings or integers, not {key}: convert "
                      "with int() or str()")


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """A generator for one purpose, such as one parameter, that `names` (strings, integers) name.

    Its random bits are the same in every version of NumPy.  A new version may make other numbers
    of these bits (NEP 19).  Raises ValueError for a seed or names of a wrong type.
    """
    return np.random.Generator(np.random.Philox(key=_key(seed, *names)))


def first_uniform(seed: int, *names: str | int) -> float:
    """The number in [0, 1) that `generator(seed, *names).random()` begins with, in less time."""
    return (np.random.Philox(key=_key(seed, *names)).random_raw() >> 11) * 2.0**-53


def _numbers(key: int, start: int, stop: int) -> np.ndarray:
    """Numbers `start` … `stop` - 1 of the uint16 stream that belongs to `key`: (stop - start,)."""
    count, skip = divmod(start, NUMBERS_PER_COUNT)
    length = stop - start
    words = np.random.Philox(key=key, counter=count).random_raw(-(-(skip + length) // 4))
    return words.astype("<u8", copy=False).view("<u2")[skip:skip + length]


def dropout_mask(seed: int, step: int, layer: str, samples: Sequence[int] | np.ndarray,
                 shape: tuple[int, ...], rate: float,
                 cuts: tuple[slice, ...] | None = None) -> np.ndarray:
    """The boolean mask (len(samples), *shape) of elements to keep, with probability 1 - rate each.

    `samples` are the global numbers of the samples, `shape` is the whole shape of one.  With
    `cuts`, slices of a sample's leading axes, the result is the part mask[:, *cuts].  If the
    first slice has step 1, no numbers outside it are drawn.  The probability is rounded to a
    multiple of 2⁻¹⁶.  Raises ValueError for a rate that is not in [0, 1), for negative samples and
    for cuts that do not fit.
    """
    samples, cuts = np.asarray(samples), tuple(cuts or ())
    if not 0 <= rate < 1:
        raise ValueError(f"a dropout rate is in [0, 1), not {rate}")
    if samples.ndim != 1 or samples.size and (samples.dtype.kind not in "iu" or samples.min() < 0):
        raise ValueError(f"samples are global sample numbers 0, 1, …, one axis, not {samples!r}")
    if len(cuts) > len(shape) or not all(isinstance(part, slice) for part in cuts):
        raise ValueError(f"cuts are one slice for each leading axis of {shape}, not {cuts}")
    key, threshold = _key(seed, step, "dropout", layer), round(rate * 2**16)
    size, start, part = math.prod(shape), 0, tuple(shape)
    rows = range(shape[0])[cuts[0]] if cuts else range(0)
    if cuts and rows.step == 1 and len(rows) < shape[0]:
        # A stretch of each sample: only that is drawn, one sample at a time.
        start, part = rows.start * math.prod(shape[1:]), (len(rows), *shape[1:])
        cuts, runs = (slice(None), *cuts[1:]), samples[:, None]
    else:
        # Samples in a row own one stretch of the stream: it is drawn at once.
        runs = np.split(samples, np.flatnonzero(np.diff(samples) != 1) + 1)
    keep = np.empty((len(samples), math.prod(part)), dtype=bool)
    done = 0
    for run in runs:
        if run.size:
            first = int(run[0]) * size + start
            numbers = _numbers(key, first, first + run.size * keep.shape[1])
            keep[done:done + run.size] = numbers.reshape(run.size, -1) >= threshold
            done += run.size
    keep = np.ascontiguousarray(keep.reshape(len(samples), *part)[:, *cuts])
    keep.flags.writeable = False        # so that no operation needs to save a copy
    return keep
