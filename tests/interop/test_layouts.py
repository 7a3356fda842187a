"""The tables of weights: every parameter of a model, of any size, has its arrays."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from minipar.backend.shape_array import ShapeArray
from minipar.interop import InteropError, llama, load_pretrained, save_pretrained
from minipar.interop.hugging_face import LAYOUTS, layout_of, open_pretrained, to_arrays
from minipar.nn import GPT, GPTConfig, RopeConfig


@pytest.mark.parametrize("layers, heads, width, num_parameters", [
    (12, 12, 768, 124_439_808), (24, 16, 1024, 354_823_168), (36, 20, 1280, 774_030_080),
    (48, 25, 1600, 1_557_611_200)])
@pytest.mark.one_in(2)
def test_the_sizes_of_gpt2_without_numbers(layers, heads, width, num_parameters):
    sizes = GPTConfig(50257, 1024, layers, heads, width)
    model = GPT(sizes)
    assert model.num_parameters() == num_parameters
    shapes = {name: parameter.global_shape for name, parameter in model.named_parameters()}
    table = layout_of(sizes).weights(sizes)
    assert {weight.name: next(iter(weight.arrays.values())) for weight in table} \
        == shapes
    model.initialize(array=ShapeArray((), np.float32))
    assert model(ShapeArray((1, 1024), np.int64)).shape == (1, 1024, 50257)


def test_every_parameter_of_a_llama_has_its_arrays():
    sizes = GPTConfig(32, 16, 2, 4, 12, 2, tied=False, head_width=6, mlp_width=10, norm="rms",
                      mlp="swiglu", rope=RopeConfig(), bias=False)
    state = GPT(sizes).initialize(dtype=np.float64).state_dict()
    arrays = to_arrays(sizes, state)
    table = layout_of(sizes).weights(sizes)
    assert {weight.name for weight in table} == set(state)
    for weight in table:
        assert {key: arrays[key].shape for key in weight.arrays} == weight.arrays
        assert np.array_equal(weight.from_file(arrays), state[weight.name])


def test_an_added_layout_is_found_by_its_parts_and_by_its_name(tmp_path, monkeypatch):
    """A Llama whose MLP has no gate, as a third entry of LAYOUTS."""
    def read_config(config):
        sizes, is_tied = llama.read_config(config)
        return replace(sizes, mlp="gelu"), is_tied
    mine = SimpleNamespace(**{
        **vars(llama), "PARTS": {**llama.PARTS, "mlp": "gelu"}, "read_config": read_config,
        "write_config": lambda sizes: llama.write_config(sizes) | {"model_type": "mine"},
        "weights": lambda sizes: [weight for weight in llama.weights(sizes)
                                  if "c_gate" not in weight.name]})
    model = GPT(GPTConfig(11, 8, 2, 2, 8, norm="rms", rope=RopeConfig(), bias=False)).initialize(1)
    with pytest.raises(InteropError, match="no layout has norm rms, mlp gelu, rotary positions"):
        save_pretrained(tmp_path, model)
    monkeypatch.setitem(LAYOUTS, "mine", mine)
    save_pretrained(tmp_path, model)
    again, _ = load_pretrained(tmp_path)
    assert again.config.mlp == "gelu" and open_pretrained(tmp_path).layout is mine
    for name, values in model.state_dict().items():
        assert np.array_equal(again.state_dict()[name], values)
