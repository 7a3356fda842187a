"""GPT-2's and Llama's layouts: recorded logits, both directions, and what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from minipar.interop import InteropError, load_pretrained, open_safetensors, save_pretrained
from minipar.interop import write_safetensors as write
from minipar.interop.hugging_face import open_pretrained
from minipar.nn import GPT, GPTConfig, RopeConfig

DATA = Path(__file__).parent / "data"
MODELS = ["gpt2", "llama", "llama_rope"]


def read_model(folder, dtype=None):
    return load_pretrained(folder, dtype)[0]


@pytest.fixture
def folder(tmp_path):
    """A function that copies a model, with other config values (None: absent) and other arrays."""
    def copy(name, arrays=None, **config):
        to = tmp_path / name
        shutil.copytree(DATA / name, to, dirs_exist_ok=True)
        values = json.loads((to / "config.json").read_text()) | config
        values = {key: value for key, value in values.items() if value != "gone"}
        (to / "config.json").write_text(json.dumps(values))
        if arrays is not None:
            write(to / "model.safetensors", arrays(dict(open_safetensors(DATA / name))))
        return to
    return copy


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_hidden_states_are_those_recorded(name):
    model, expected = read_model(DATA / name, np.float64), np.load(DATA / name / "expected.npz")
    x = model.embed(expected["ids"])
    hidden = [x.data]
    for block in model.h:
        x = block(x)
        hidden.append(x.data)
    hidden[-1] = model.ln_f(x).data             # recorded behind the last norm
    for ours, theirs in zip(hidden, expected["hidden"], strict=True):
        assert np.max(np.abs(ours - theirs)) < 1e-12
    assert np.max(np.abs(model(expected["ids"]).data - expected["logits"])) < 1e-12


def turned(arrays):
    """The same with a square matrix transposed, which has the right shape."""
    key = "transformer.h.1.attn.c_proj.weight"
    return arrays | {key: arrays[key].T}


@pytest.mark.parametrize("arrays, config, least, most", [
    (turned, {}, 1, 10), (None, {"layer_norm_epsilon": 1e-6}, 1e-4, 1e-3),
    (None, {"layer_norm_epsilon": 1.01e-5}, 1e-7, 1e-4)])
def test_mistakes_that_give_plausible_numbers_are_seen(folder, arrays, config, least, most):
    expected = np.load(DATA / "gpt2" / "expected.npz")
    wrong = read_model(folder("gpt2", arrays, **config), np.float64)
    assert least < np.max(np.abs(wrong(expected["ids"]).data - expected["logits"])) < most


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_written_as_it_was_read(name, tmp_path):
    source = open_pretrained(DATA / name)
    save_pretrained(tmp_path, read_model(DATA / name))
    again, first = open_pretrained(tmp_path), open_safetensors(DATA / name)
    assert again.sizes == source.sizes
    second = open_safetensors(tmp_path)
    assert set(first) == set(second)
    assert all(np.array_equal(first[key], second[key]) for key in first)


def test_loading_draws_no_numbers(monkeypatch):
    monkeypatch.setattr(GPT, "initialize", None)
    assert all(parameter.initialized for parameter in read_model(DATA / "gpt2").parameters())


def test_older_files_have_no_prefix_and_hold_masks(folder):
    def older(arrays):
        arrays = {key.removeprefix("transformer."): array for key, array in arrays.items()}
        for i in range(3):
            arrays[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, 32, 32), np.float32))
            arrays[f"h.{i}.attn.masked_bias"] = np.float32(-1e4)
        return arrays
    old, new = read_model(folder("gpt2", older)), read_model(DATA / "gpt2")
    assert all(np.array_equal(a, new.state_dict()[key]) for key, a in old.state_dict().items())


def test_llamas_older_files_hold_frequencies(folder):
    key = "model.layers.1.self_attn.rotary_emb.inv_freq"
    read_model(folder("llama", lambda arrays: arrays | {key: np.ones(3, np.float32)}))


@pytest.mark.parametrize("name, embedding", [("gpt2", "transformer.wte.weight"),
                                             ("llama_rope", "model.embed_tokens.weight")])
def test_the_head_is_tied_where_the_file_has_it_so(folder, name, embedding):
    def with_head(scale):
        return lambda arrays: arrays | {"lm_head.weight": scale * arrays[embedding]}
    ids = np.arange(8)[None]
    tied = read_model(folder(name, with_head(1)), np.float64)
    assert tied.config.tied
    own = read_model(folder(name, with_head(2)), np.float64)
    assert not own.config.tied
    assert np.allclose(own(ids).data, 2 * tied(ids).data, rtol=1e-12)
    said_so = read_model(folder(name, with_head(1), tie_word_embeddings=False), np.float64)
    assert not said_so.config.tied
    assert np.allclose(said_so(ids).data, tied(ids).data, rtol=1e-12)
    with pytest.raises(InteropError, match="has no 'lm_head.weight'"):
        read_model(folder(name, lambda arrays: arrays, tie_word_embeddings=False))


@pytest.mark.parametrize("name, scaling, expected", [
    ("llama", None, RopeConfig(10_000)), ("llama", {"rope_type": "default"}, RopeConfig(10_000)),
    ("llama", {"type": "linear", "factor": 2}, RopeConfig(10_000, "linear", 2)),
    ("llama", {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
               "original_max_position_embeddings": 64}, RopeConfig(10_000, "llama3", 8, 1, 4, 64))])
def test_rotary_positions_at_both_places(folder, name, scaling, expected):
    old = folder(name, rope_parameters="gone", rope_theta=10_000, rope_scaling=scaling)
    assert open_pretrained(old).sizes.rope == expected
    new = folder(name, rope_parameters={"rope_theta": 10_000, **(scaling or {})},
                 rope_scaling="gone", rope_theta="gone")
    assert open_pretrained(new).sizes.rope == expected


def test_the_frequencies_of_llama3_have_three_kinds():
    rope = open_pretrained(DATA / "llama_rope").sizes.rope
    expected = np.load(DATA / "llama_rope" / "expected.npz")["inv_freq"]
    assert np.allclose(rope.frequencies(8), expected, rtol=1e-7)
    assert np.allclose(expected, [1, 0.25465, 0.025465, 0.0079057], rtol=1e-4)


GPT2_REFUSALS = [
    ({"activation_function": "gelu"}, "activation_function is 'gelu': only gelu_new or gelu_py"),
    ({"scale_attn_weights": False}, "scale_attn_weights is False: only True"),
    ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    ({"add_cross_attention": True}, "add_cross_attention is True"),
    ({"model_type": "bert"}, "model_type is 'bert': only gpt2 or llama"),
    ({"resid_pdrop": 0.2}, "pdrop is .* one dropout rate"),
    ({"quantization_config": {"bits": 4}}, "quantization_config is"),
    ({"n_embd": "24"}, "n_embd is '24': an int was expected"), ({"n_layer": "gone"}, "no n_layer"),
    ({"n_positions": 0}, "context must be at least 1, not 0"),
    ({"n_layer": True}, "n_layer is True"), ({"n_head": 5}, "24 does not divide into 5 heads"),
    ({"n_layer": 10**9}, "asks for 1,000,000,000 layers, but .* has 40 arrays"),
    ({"n_layer": 4}, "has no 'transformer.h.3.attn.c_attn.weight'"),
    ({"n_layer": 2}, "has 'transformer.h.2.* and 11 more, which this model has no use for"),
    ({"n_inner": 95}, "c_fc.weight' has shape .24, 96., but config.json asks for .24, 95."),
    ({"vocab_size": 97}, "'transformer.wte.weight' has shape .96, 24., but .* .97, 24."),
    ({"layer_norm_epsilon": 10**400}, "layer_norm_epsilon is 1000000.*: it is too large"),
]
LLAMA_REFUSALS = [
    ({"attention_bias": True}, "attention_bias is True"), ({"mlp_bias": True}, "mlp_bias is True"),
    ({"hidden_act": "gelu"}, "hidden_act is 'gelu': only silu"),
    ({"pretraining_tp": 2}, "pretraining_tp is 2: only 1"),
    ({"sliding_window": 4096}, "sliding_window is 4096: the model here has nothing like it"),
    ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 2}},
     "rope_parameters.rope_type is 'yarn': only default or linear or llama3"),
    ({"rope_parameters": "gone", "rope_scaling": {"type": "dynamic", "factor": 2}},
     "rope_scaling.type is 'dynamic'"),
    ({"rope_parameters": {"rope_type": "llama3"}}, "has no rope_parameters.factor"),
    ({"rope_parameters": {"rope_theta": -1}}, "theta must be above 0"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
    ({"rope_parameters": 3}, "rope_parameters is 3: a dict was expected"),
    ({"num_key_value_heads": 3}, "4 heads cannot share 3"),
    ({"head_dim": 7}, "a head has a width of 7|has shape"),
    ({"num_key_value_heads": 4}, "k_proj.weight' has shape .12, 24., but .* .24, 24."),
]


@pytest.mark.parametrize("name, changes, said", [
    *(("gpt2", *case) for case in GPT2_REFUSALS), *(("llama", *case) for case in LLAMA_REFUSALS)])
def test_what_the_model_does_not_do_is_refused(folder, name, changes, said):
    with pytest.raises(InteropError, match=said) as raised:
        open_pretrained(folder(name, **changes))
    assert "\n" not in str(raised.value) and str(folder(name)) in str(raised.value)


@pytest.mark.parametrize("arrays, said", [
    (lambda a: a | {"x": np.ones(2)}, "has 'transformer.x', which this model has no use for"),
    (lambda a: {key: a[key] for key in list(a)[1:]}, "has no 'transformer.h.0.attn.c_attn.bias'"),
    (lambda a: a | {"wte.weight": a["transformer.wte.weight"]}, "are the same weight"),
    (lambda a: a | {"transformer.ln_f.bias": np.ones(24, int)}, "ln_f.bias' is I64, but weights"),
])
def test_arrays_that_do_not_fit(folder, arrays, said):
    with pytest.raises(InteropError, match=said):
        open_pretrained(folder("gpt2", arrays))


def test_folders_without_what_is_needed(tmp_path):
    with pytest.raises(InteropError, match="cannot be read"):
        open_pretrained(tmp_path / "none")
    shutil.copy(DATA / "gpt2" / "model.safetensors", tmp_path)
    with pytest.raises(InteropError, match="config.json cannot be read"):
        open_pretrained(tmp_path)
    with pytest.raises(InteropError, match="is one file: give its folder"):
        open_pretrained(tmp_path / "model.safetensors")


@pytest.mark.parametrize("dtype, most", [("F64", 0), ("F32", 0), ("BF16", 2**-8), ("F16", 2**-11)])
def test_written_in_other_dtypes(tmp_path, dtype, most):
    source = open_pretrained(DATA / "llama")
    save_pretrained(tmp_path, read_model(DATA / "llama", np.float64), dtype=dtype, largest=20_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    kind = json.loads((tmp_path / "config.json").read_text())["torch_dtype"]
    assert kind == {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}[dtype]
    for name, ours in open_pretrained(tmp_path).parameters(np.float64).items():
        theirs = source.parameters(np.float64)[name]
        assert np.all(np.abs(ours - theirs) <= most * np.abs(theirs) + 1e-7 * (most > 0))


@pytest.mark.parametrize("options, said", [
    ({"norm": "rms"}, "no layout has norm rms, mlp gelu"), ({"bias": False}, "no biases together"),
    ({"num_kv_heads": 1}, "no kv_heads, here 1 for 2"),
    ({"head_width": 3}, "no head_width, here 3"),
    ({"norm": "rms", "mlp": "swiglu", "rope": RopeConfig(), "bias": False, "dropout": 0.1},
     "no dropout, here 0.1")])
def test_models_that_no_layout_knows(tmp_path, options, said):
    sizes = GPTConfig(7, 8, 1, 2, 8, **options)
    with pytest.raises(InteropError, match=said):
        save_pretrained(tmp_path, GPT(sizes).initialize())
    assert not list(tmp_path.iterdir())
