"""Grids: the bound, the conventions, what is clipped, what is kept."""

import numpy as np
import pytest

from minipar.compress.quantization.granularity import CHANNEL, Granularity
from minipar.compress.quantization.observers import NAMES, Observer, weight_qparams
from minipar.compress.quantization.quantized_tensor import QuantizedTensor
from minipar.number_formats.affine import SCHEMES, IntGrid

PERS = ("tensor", "channel", "group:32", "group:64")
DRAWS = {"normal": lambda draw: draw.standard_normal((7, 100)),
         "one-sided": lambda draw: draw.random((7, 100)) + 3,
         "outliers": lambda draw: draw.standard_cauchy((7, 100)),
         "tiny": lambda draw: draw.standard_normal((7, 100)) * 1e-40,
         "huge": lambda draw: draw.uniform(-1e38, 1e38, (7, 100)),
         "zeros": lambda draw: np.zeros((7, 100))}


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("per", PERS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_error_is_at_most_half_a_step(bits, scheme, per, kind):
    rows = DRAWS[kind](np.random.default_rng(bits)).astype(np.float32)
    kept = QuantizedTensor.nearest(rows, IntGrid(bits, scheme), Granularity.parse(per))
    steps = np.broadcast_to(kept.per.spread(kept.scale, rows.shape), rows.shape)
    error = np.abs(rows.astype(np.float64) - kept.rows(np.float64))
    assert np.all(error <= steps.astype(np.float64) / 2 * (1 + 1e-4))
    assert np.all(kept.rows()[rows == 0] == 0)
    assert kept.codes().min() >= kept.grid.lowest and kept.codes().max() <= kept.grid.highest


def test_conventions_by_hand():
    x = np.array([[-1.0, 0.5, 1.75]])
    for scheme, scale, zero, codes in (("symmetric", 0.25, 0, [-4, 2, 7]),
                                       ("symmetric_full", 1.75 / 7.5, 0, [-4, 2, 7]),
                                       ("asymmetric", 2.75 / 15, 5, [0, 8, 15])):
        grid = IntGrid(4, scheme)
        fitted = weight_qparams(x, grid)
        assert fitted[0] == np.float32(scale) and fitted[1] == zero
        assert grid.encode(x, *fitted).tolist() == [codes]


def test_pytorchs_integers():
    """Of torch.quantize_per_tensor and of dynamic int8 quantization, which divides by 127.5."""
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 1e4, -1e4, 0.9668248, -3.7900043], np.float32)
    quint8, qint8 = IntGrid(8, "asymmetric"), IntGrid(8, "symmetric_full")
    codes = quint8.encode(x, np.float32(0.05), np.uint8(120))
    assert codes.tolist() == [130, 150, 170, 110, 90, 70, 255, 0, 139, 44]
    codes = qint8.encode(x, np.float32(0.03), np.int8(-7))
    assert codes.tolist() == [10, 43, 76, -24, -57, -90, 127, -128, 25, -128]
    codes = qint8.encode(x, np.float32(1), np.int8(0))              # ties to even
    assert codes.tolist() == [0, 2, 2, 0, -2, -2, 127, -128, 1, -4]
    assert weight_qparams(np.array([-1e4, 1e4]), qint8)[0] == np.float32(78.431373)
    assert weight_qparams(np.array([-1e4, 1e4]), quint8) == (np.float32(78.431373), 128)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", range(2, 9))
def test_codes_are_packed_without_loss(bits, scheme):
    grid, draw = IntGrid(bits, scheme), np.random.default_rng(bits)
    codes = draw.integers(grid.lowest, grid.highest + 1, (5, 13)).astype(grid.dtype)
    ones, zeros = np.ones((5, 1), np.float32), np.zeros((5, 1), grid.dtype)
    kept = QuantizedTensor.from_codes(codes, ones, zeros,
                              grid, Granularity("channel"))
    assert kept.packed.shape == (5, -(-13 * bits // 8))
    assert kept.codes().dtype == grid.dtype and np.array_equal(kept.codes(), codes)
    again = QuantizedTensor.from_arrays(kept.arrays(), (5, 13), grid, kept.per)
    assert np.array_equal(again.rows(), kept.rows())


def test_the_last_group_may_be_shorter():
    rows = np.concatenate([np.full((2, 32), 100.0), np.full((2, 5), 1.0)], axis=1)
    kept = QuantizedTensor.nearest(rows.astype(np.float32), IntGrid(4),
                                   Granularity("group", 32))
    assert kept.scale.shape == (2, 2, 1)
    np.testing.assert_allclose(kept.rows(), rows, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_observers_combine_batches(name):
    draw = np.random.default_rng(0)
    batches = [draw.standard_normal((2, 500)) for _ in range(3)]
    seen = Observer(name, IntGrid(4))
    for batch in batches:
        seen.observe(batch)
    highs = [batch.max(axis=1, keepdims=True) for batch in batches]
    if name == "minmax":
        assert np.array_equal(seen.high, np.maximum.reduce(highs))
    elif name == "moving":
        past = highs[0] + 0.01 * (highs[1] - highs[0])
        np.testing.assert_allclose(seen.high, past + 0.01 * (highs[2] - past))
    else:
        assert np.all(seen.high < np.maximum.reduce(highs))
    before = seen.calculate_qparams()
    seen.freeze()
    seen.observe(batches[0] * 10)
    assert np.array_equal(before[0], seen.calculate_qparams()[0])


def test_the_least_squared_error_is_less_than_that_of_the_extremes():
    rows = np.random.default_rng(1).standard_normal((4, 400))
    grid = IntGrid(3)
    error = {name: np.sum((rows - QuantizedTensor.nearest(rows, grid, CHANNEL, name).rows())**2, 1)
             for name in ("minmax", "mse")}
    assert np.all(error["mse"] < 0.8 * error["minmax"])


@pytest.mark.parametrize("make, problem", [
    (lambda: IntGrid(1), "2 to 8 bits are possible, not of 1"),
    (lambda: IntGrid(8, "affine"), "a scheme is one of symmetric"),
    (lambda: Granularity.parse("group"), "per tensor, channel or group:SIZE"),
    (lambda: Granularity.parse("group:x"), "per tensor, channel or group:SIZE"),
    (lambda: Granularity.parse("channel:3"), "per tensor, channel or group:SIZE"),
    (lambda: weight_qparams(np.array([1.0, np.nan]), IntGrid()), "NaN or infinity"),
    (lambda: Observer("max", IntGrid()), "an observer is one of"),
    (lambda: Observer("minmax", IntGrid()).calculate_qparams(), "has seen no numbers"),
    (lambda: QuantizedTensor.from_arrays({}, (2, 3), IntGrid(), Granularity()), "are kept as")])
def test_what_cannot_be_is_refused(make, problem):
    with pytest.raises(ValueError, match=problem):
        make()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bits", [2, 4, 6, 8])
def test_no_grid_makes_infinity_of_finite_numbers(scheme, bits):
    grid, largest = IntGrid(bits, scheme), np.finfo(np.float32).max
    for ends in ([-largest, largest], [0, largest], [-largest, 0], [-largest, largest / 3]):
        x = np.linspace(*np.array(ends, np.float64), 33).astype(np.float32)
        scale, zero = weight_qparams(x[None], grid)
        decoded = grid.decode(grid.encode(x, scale[0], zero[0]), scale[0], zero[0])
        assert np.isfinite(decoded).all()
        assert np.all(np.abs(decoded / scale[0] - x / scale[0]) <= 1.001)
