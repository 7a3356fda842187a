"""Whole models: what is kept in few bits, what it costs, what is refused."""

import copy

import numpy as np
import pytest

from minipar.autograd import Meter, Tensor, no_grad
from minipar.checkpoint_file import Checkpoint, CheckpointError, save
from minipar.compress import (
    FLOAT_GRIDS,
    Granularity,
    IntGrid,
    QuantizedLinear,
    load_model,
    pack_quantized,
)
from minipar.compress.quantization.gptq import gptq, hessian
from minipar.compress.quantization.layers import ACTIVATIONS
from minipar.compress.quantization.post_training import quantize
from minipar.nn import GPT, MLP, GPTConfig, Linear

IDS = np.random.default_rng(0).integers(0, 19, (4, 8))
X = np.random.default_rng(1).standard_normal((50, 64)).astype(np.float32)


def gpt(**changes):
    sizes = {"context": 8, "num_layers": 2, "num_heads": 2, "width": 32, **changes}
    return GPT(GPTConfig(19, **sizes)).initialize(3)


def mlp(*sizes):
    return MLP(sizes or (64, 48, 10)).initialize(3)


def outputs(model):
    with no_grad():
        return model.logits(X if isinstance(model, MLP) else IDS).data


MODELS = {"gpt": gpt, "untied": lambda: gpt(tied=False, num_kv_heads=1), "mlp": mlp}
WAYS = {"int8": {}, "int4 group": {"grid": IntGrid(4), "per": Granularity("group", 32)},
        "int4 gptq": {"grid": IntGrid(4, "asymmetric"), "method": "gptq"},
        "integers": {"activations": True, "observer": "moving"},
        "fp8": {"grid": FLOAT_GRIDS["fp8"]}, "mxfp8": {"grid": FLOAT_GRIDS["mxfp8"]},
        "mxfp4 gptq": {"grid": FLOAT_GRIDS["mxfp4"], "method": "gptq"}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_a_quantized_model_computes_nearly_the_same_and_survives_a_checkpoint(model, way):
    plain = MODELS[model]()
    data = [X] if model == "mlp" else [IDS]
    small = quantize(copy.deepcopy(plain), calibration=data, **WAYS[way])
    far = np.abs(outputs(small) - outputs(plain)).max() / np.abs(outputs(plain)).max()
    assert 0 < far < (0.05 if way in ("int8", "integers") else 0.5)
    arrays, step = pack_quantized(small)
    again = load_model(Checkpoint(arrays, {}, {"compression": [step]}), MODELS[model]())
    assert np.array_equal(outputs(again), outputs(small))
    assert sum(slab.data.nbytes for slab in small.slabs) == 4 * sum(
        p.size for name, p in plain.named_parameters() if p.ndim == 1)


@pytest.mark.parametrize("bits, ratio", [(8, 3.9), (4, 7.7)])
def test_bytes_are_those_of_the_codes_and_scales(bits, ratio):
    plain = mlp(512, 512, 512)
    arrays, _ = pack_quantized(quantize(copy.deepcopy(plain), IntGrid(bits)))
    num_bytes = sum(array.nbytes for array in arrays.values())
    assert num_bytes == 2 * (512 * 512 * bits // 8 + 4 * 512 + 4 * 512)
    assert 4 * plain.num_parameters() / num_bytes > ratio


@pytest.mark.parametrize("bits, ratio", [(8, 3.9), (4, 7.5)])
def test_a_file_is_as_many_times_smaller(tmp_path, bits, ratio):
    """Biases, layer norms, scales and the file's own headers are what is missing to 4 and 8."""
    model = gpt(width=384, num_heads=4)
    plain = 4 * model.num_parameters()
    arrays, step = pack_quantized(quantize(model, IntGrid(bits)))
    path = save(tmp_path, Checkpoint(arrays, {}, {"compression": [step]}))
    assert ratio < plain / path.stat().st_size < 32 / bits


def test_a_meter_counts_a_product_of_integers_as_a_product():
    counted = []
    for model in (mlp(), quantize(mlp(), calibration=[X], activations=True)):
        with no_grad(), Meter().running() as meter:
            model.logits(X)
        counted.append(meter.total_flops())
    assert counted[0] == counted[1] > 2 * 50 * 64 * 48


def test_integers_give_what_dequantized_numbers_give():
    """The same grids in float64: only float32's rounding of scales' product is between them."""
    model = quantize(mlp().initialize(3, np.float64), calibration=[X.astype(np.float64)],
                     activations=True)
    first = model[0]
    x = X.astype(np.float64)
    on_grid = ACTIVATIONS.decode(ACTIVATIONS.encode(x, first.input_scale, first.input_zero),
                                 first.input_scale, first.input_zero)
    with no_grad():
        found = first(Tensor(x)).data
    np.testing.assert_allclose(found, on_grid @ first.weight.data + first.bias.data, atol=1e-5)


def test_gptq_uses_the_quantized_inputs_of_what_came_before():
    """The second layer's Hessian is of what the quantized first one gives."""
    plain = mlp()
    model = quantize(copy.deepcopy(plain), IntGrid(2), method="gptq", calibration=[X])
    hidden = np.maximum(X @ model[0].weight.data + model[0].bias.data, 0)
    expected = gptq(plain[2].weight.data.T, hessian(hidden), IntGrid(2), Granularity())
    assert np.array_equal(model[2].quantized.codes(), expected.codes())


def test_no_derivative_of_integers():
    model = quantize(mlp(), calibration=[X], activations=True)
    with pytest.raises(TypeError, match="has no derivative: run the model inside"):
        model(Tensor(X, requires_grad=True))


@pytest.mark.parametrize("options, problem", [
    ({"per": Granularity("group", 128)}, "no layer has 128 inputs to share a scale, at most 64"),
    ({"method": "gptq"}, "need calibration data"),
    ({"method": "best"}, "a method is one of nearest, gptq"),
    ({"activations": True, "per": Granularity("group", 32), "calibration": [X]},
     "one scale for each out"),
    ({"activations": True, "grid": FLOAT_GRIDS["fp8"], "calibration": [X]}, "integers, not fp8")])
def test_what_cannot_be_is_refused_before_anything_changes(options, problem):
    model = mlp()
    with pytest.raises(ValueError, match=problem):
        quantize(model, **options)
    assert type(model[0]) is Linear
    model = quantize(model)
    assert type(model[0]) is QuantizedLinear
    with pytest.raises(ValueError, match="layer 0 is quantized already, to 8 bits"):
        quantize(model)


def test_bad_numbers_and_bad_checkpoints_are_refused():
    for method in ("nearest", "gptq"):
        model = mlp()
        model[2].weight.data[0, 0] = np.inf
        with pytest.raises(ValueError, match="2.weight has NaN or infinity"):
            quantize(model, method=method, calibration=[X])
        assert type(model[0]) is Linear
    arrays, step = pack_quantized(quantize(mlp()))
    for wrong, problem in (({**step, "bits": 4}, "0.weight: .* are kept as"),
                           ({**step, "kind": "melted"}, "unknown kind of compression melted"),
                           ({"kind": "quantized"}, "has no per")):
        with pytest.raises(CheckpointError, match=problem):
            load_model(Checkpoint(dict(arrays), {}, {"compression": [wrong]}), mlp())
    with pytest.raises(ValueError, match="is not quantized"):
        pack_quantized(mlp())
