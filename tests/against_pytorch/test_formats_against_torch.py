"""Number formats against PyTorch's casts: all codes, and numbers of every size."""

import numpy as np
import pytest
import torch

from minipar.number_formats import FLOAT8_E8M0, FORMATS

# PyTorch's cast to e4m3fn saturates, to the fnuz formats it makes NaN, to the others infinity.
OVERFLOW = {"float16": "inf", "bfloat16": "inf", "float8_e5m2": "inf", "float8_e4m3fn": "saturate",
            "float8_e4m3fnuz": "nan", "float8_e5m2fnuz": "nan"}


def in_torch(fmt):
    return getattr(torch, fmt.name)


def as_unsigned(tensor):
    return tensor.view({1: torch.uint8, 2: torch.uint16}[tensor.element_size()]).numpy()


def numbers_of_every_size():
    """Random bits, and what lies on the floats beside it: 400,000 float32."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    near_one = np.random.default_rng(1).standard_normal(200_000).astype(np.float32)
    return np.concatenate([bits.view(np.float32), near_one * 100])


@pytest.mark.parametrize("name", OVERFLOW)
def test_every_code_means_the_same(name):
    fmt = FORMATS[name]
    codes = np.arange(1 << fmt.bits).astype(fmt.dtype)
    theirs = torch.from_numpy(codes).view(in_torch(fmt)).float().numpy()
    ours = fmt.decode(codes)
    np.testing.assert_array_equal(ours, theirs)
    regular = ~np.isnan(ours)
    assert np.array_equal(np.signbit(ours[regular]), np.signbit(theirs[regular]))


@pytest.mark.parametrize("name", OVERFLOW)
def test_every_number_gets_the_same_code(name):
    fmt = FORMATS[name].with_overflow(OVERFLOW[name])
    values = np.append(FORMATS[name].decode(np.arange(1 << fmt.bits).astype(fmt.dtype)),
                       numbers_of_every_size())
    with np.errstate(all="ignore"):
        ties = (values[:-1] + values[1:]) / 2
        values = np.concatenate([values, ties, np.nextafter(ties, np.float32(0))])
    theirs = as_unsigned(torch.from_numpy(values).to(in_torch(fmt)))
    ours, nan = fmt.encode(values), np.isnan(values)
    assert np.array_equal(ours[~nan], theirs[~nan])
    assert np.isnan(fmt.decode(ours[nan])).all() and np.isnan(fmt.decode(theirs[nan])).all()
    assert np.array_equal(fmt.round(values[~nan]), fmt.decode(theirs[~nan]), equal_nan=True)


def test_powers_of_two():
    """PyTorch drops signs and makes 0 the smallest power; below 2⁻¹²⁶ its ties lie elsewhere."""
    codes = np.arange(256, dtype=np.uint8)
    theirs = torch.from_numpy(codes).view(torch.float8_e8m0fnu).float().numpy()
    assert np.array_equal(FLOAT8_E8M0.decode(codes), theirs, equal_nan=True)
    values = numbers_of_every_size()
    values = values[values >= 2.0**-126]
    theirs = as_unsigned(torch.from_numpy(values).to(torch.float8_e8m0fnu))
    assert np.array_equal(FLOAT8_E8M0.encode(values), theirs)
