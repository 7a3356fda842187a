"""Floats of 8 and 4 bits as grids: the formats' own numbers and bytes, and what is refused."""

import numpy as np
import pytest

from minipar.compress import FLOAT_GRIDS, Granularity, IntGrid, QuantizedTensor, pack_quantized
from minipar.compress.quantization.gptq import gptq, hessian
from minipar.compress.quantization.observers import weight_qparams
from minipar.compress.quantization.post_training import quantize
from minipar.nn import GPT, GPTConfig
from minipar.number_formats import FLOAT8_E4M3FN, MXFP4, MXFP8_E4M3

BLOCKS = {"mxfp8": MXFP8_E4M3, "mxfp4": MXFP4}


def rows(shape=(7, 70), seed=0):
    draw = np.random.default_rng(seed)
    return (draw.standard_normal(shape) * np.exp(draw.standard_normal((shape[0], 1)))).astype(
        np.float32)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_those_of_the_standard(name):
    """The same codes, and one byte of scale for 32, as the format by itself gives."""
    w, grid = rows(), FLOAT_GRIDS[name]
    codes, scales = BLOCKS[name].encode(w)
    kept = QuantizedTensor.nearest(w, grid, grid.per)
    np.testing.assert_array_equal(kept.codes(), codes)
    np.testing.assert_array_equal(kept.scale[..., 0], scales)
    assert kept.scale.dtype == np.uint8 and kept.nbytes == 7 * 70 * grid.bits // 8 + 7 * 3
    np.testing.assert_array_equal(kept.rows(), BLOCKS[name].round(w))


@pytest.mark.parametrize("per", ["tensor", "channel", "group:32"])
def test_fp8_reaches_to_its_largest_number_in_each_unit(per):
    w, per = rows(), Granularity.parse(per)
    kept = QuantizedTensor.nearest(w, FLOAT_GRIDS["fp8"], per)
    units, found = per.split(w), per.split(kept.rows())
    largest = np.abs(units).max(-1, keepdims=True)
    np.testing.assert_allclose(np.abs(found).max(-1, keepdims=True), largest, rtol=1e-6)
    np.testing.assert_allclose(kept.scale, largest / 448, rtol=1e-6)
    error, step = np.abs(found - units), FLOAT8_E4M3FN.smallest_subnormal * kept.scale
    assert np.all(error <= np.maximum(np.abs(units) * 2.0**-4, step / 2) * (1 + 1e-5))


@pytest.mark.parametrize("name", FLOAT_GRIDS)
def test_what_is_large_tiny_zero_or_not_finite(name):
    grid, largest = FLOAT_GRIDS[name], np.finfo(np.float32).max
    for value in (largest, -largest, 1e-44, 0.0):
        w = np.full((2, 40), value, np.float32)
        w[:, 1::2] = 0
        kept = QuantizedTensor.nearest(w, grid, grid.per or Granularity()).rows()
        assert np.isfinite(kept).all() and not kept[:, 1::2].any()
        if abs(value) > 1:
            np.testing.assert_allclose(kept, w, rtol=1e-5 if name == "fp8" else 0.26)
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="NaN or infinity"):
            weight_qparams(np.array([[1, bad]], np.float32), grid)


@pytest.mark.parametrize("name", FLOAT_GRIDS)
def test_gptq_is_nearer_than_rounding(name):
    draw, grid = np.random.default_rng(0), FLOAT_GRIDS[name]
    inputs = draw.standard_normal((200, 40)) @ draw.standard_normal((40, 40))
    w, per = rows((6, 40)).astype(np.float64), grid.per or Granularity()
    ours = gptq(w, hessian(inputs), grid, per)
    theirs = QuantizedTensor.nearest(w, grid, per)
    ours, theirs = (np.sum((inputs @ (kept.rows() - w).T)**2) for kept in (ours, theirs))
    assert ours < 0.85 * theirs


GRIDS = {**FLOAT_GRIDS, "int8": IntGrid(8), "int4": IntGrid(4),
         "int8 asymmetric": IntGrid(8, "asymmetric"),
         "int5 asymmetric": IntGrid(5, "asymmetric")}


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("per", ["tensor", "channel", "group:32"])
@pytest.mark.parametrize("grid", GRIDS)
def test_zeros_are_not_stored_where_that_is_less(grid, per, share):
    grid = GRIDS[grid]
    per = grid.per or Granularity.parse(per)
    w = rows((40, 70))
    w[np.random.default_rng(1).random(w.shape) < share] = 0
    kept = QuantizedTensor.nearest(w, grid, per)
    arrays = kept.arrays()
    num_bytes, dense = sum(a.nbytes for a in arrays.values()), kept.nbytes
    if share >= 0.5:
        assert "nonzero" in arrays and num_bytes < dense
        num_left = np.count_nonzero(kept.rows())
        assert arrays["codes"].nbytes == -(-num_left * grid.bits // 8)
        assert arrays["nonzero"].nbytes == 40 * 70 // 8
    assert num_bytes <= dense
    again = QuantizedTensor.from_arrays(arrays, w.shape, grid, per)
    np.testing.assert_array_equal(again.rows(), kept.rows())
    np.testing.assert_array_equal(again.scale, kept.scale)


@pytest.mark.parametrize("damage", ["nonzero", "codes", "scale", "dtype"])
def test_arrays_that_do_not_fit_each_other_are_refused(damage):
    w = rows((40, 70))
    w[:, :60] = 0
    arrays = dict(QuantizedTensor.nearest(w, IntGrid(8), Granularity()).arrays())
    if damage == "dtype":
        arrays["nonzero"] = arrays["nonzero"].astype(np.float64)
    elif damage == "nonzero":
        arrays["nonzero"] = arrays["nonzero"] | 1
    else:
        arrays[damage] = arrays[damage][:-1]
    with pytest.raises(ValueError, match="are kept as"):
        QuantizedTensor.from_arrays(arrays, w.shape, IntGrid(8), Granularity())


def test_embeddings_keep_eight_bits_and_files_say_the_format():
    model = GPT(GPTConfig(19, 8, 1, 2, 48)).initialize(0)
    arrays, step = pack_quantized(quantize(model, FLOAT_GRIDS["mxfp4"]))
    assert step == {"kind": "quantized", "format": "mxfp4", "per": "group:32",
                    "activations": False}
    found = {name: array.shape for name, array in arrays.items()}
    assert found["wte.weight/codes"] == (19, 48) and found["wte.weight/scale"] == (19, 2, 1)
    assert found["h.0.mlp.c_fc.weight/codes"] == (192, 24)
    assert found["h.0.mlp.c_fc.weight/scale"] == (192, 2, 1)
