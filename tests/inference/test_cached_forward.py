"""Decoding with a cache: the logits of a whole forward, however the tokens are cut into steps."""

import numpy as np
import pytest

from minipar.autograd import Tensor, no_grad
from minipar.inference.cache import (
    ContiguousKVCache,
    KVSizes,
    PagedKVCache,
    SequenceInput,
)
from minipar.inference.model import forward_over_cache
from minipar.inference.model.plain_layers import PLAIN, evaluate
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, Embedding, GPTConfig, Linear, RopeConfig

TABLES = [[7, 1, 12, 3, 0, 19], [2, 4, 5, 6, 8, 9], [10, 11, 13, 14, 15, 16]]
CHUNKS = {"prefill": [(5, 1, 9), (1, 4, 1), (7, 1, 1), (1, 1, 1), (9, 1, 1)],
          "by blocks": [(4, 4, 4), (4, 8, 4), (1, 1, 1), (1, 1, 1)],
          "token by token": [(1, 1, 1)] * 9}


def model_of(num_kv_heads: int | None = None, dtype=np.float64, **options) -> GPT:
    config = GPTConfig(31, context=24, num_layers=2, num_heads=6, num_kv_heads=num_kv_heads,
                       width=24, **options)
    return GPT(config).initialize(seed=1, dtype=dtype)


def caches(model: GPT) -> list:
    sizes, like = KVSizes.of(model), model.slabs[0].data
    return [(PagedKVCache(sizes, 20, 4, like), TABLES),
            (ContiguousKVCache(sizes, 3, 24, like), [[1], [0], [2]])]


def largest_error(model: GPT, cache, tables, chunks) -> float:
    ids = np.random.default_rng(0).integers(0, 31, (3, 24))
    with no_grad():
        expected = model(ids).data
    positions, error = [0, 0, 0], 0.0
    for counts in chunks:
        inputs = [SequenceInput(ids[i, positions[i]:positions[i] + count].tolist(), positions[i],
                                tables[i])
                  for i, count in enumerate(counts)]
        found = forward_over_cache(model, cache, inputs).data
        positions = [sum(pair) for pair in zip(positions, counts)]
        last = np.array([expected[i, position - 1] for i, position in enumerate(positions)])
        error = max(error, float(abs(found - last).max()))
    return error


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("num_kv_heads", [None, 2, 1])
def test_logits_are_those_of_a_whole_forward(chunks, num_kv_heads):
    model = model_of(num_kv_heads)
    for cache, tables in caches(model):
        assert largest_error(model, cache, tables, CHUNKS[chunks]) < 1e-12
        assert np.isnan(cache.data).any()       # no slot without a token was read


LLAMA = {"norm": "rms", "mlp": "swiglu", "bias": False, "rope": RopeConfig(100.0, "linear", 2.0)}


@pytest.mark.parametrize("options", [{"tied": False}, {"head_width": 7, "mlp_width": 10}, LLAMA])
def test_other_models(options):
    model = model_of(2, **options)
    for cache, tables in caches(model):
        assert largest_error(model, cache, tables, CHUNKS["prefill"]) < 1e-12


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_plain_layers_are_those_of_training(kind):
    rng = np.random.default_rng(2)
    layers = [layer for model in (model_of(), model_of(**LLAMA))
              for _, layer in model.named_modules() if type(layer) is kind]
    assert layers
    for layer in layers:
        for parameter in layer.parameters():
            parameter.data[...] = rng.normal(size=parameter.shape)      # else 0 or 1 in norms
        if kind is Embedding:
            x = rng.integers(0, layer.weight.shape[0], 5)
        else:
            x = rng.normal(size=(5, layer.weight.shape[0] if kind is Linear else 24))
        with no_grad():
            expected = layer(x if kind is Embedding else Tensor(x)).data
        np.testing.assert_allclose(evaluate(layer, x.copy()), expected, rtol=1e-12)


def test_float32_stays_float32():
    model = model_of(dtype=np.float32)
    for cache, tables in caches(model):
        assert cache.data.dtype == np.float32
        assert largest_error(model, cache, tables, CHUNKS["prefill"]) < 1e-5
        new = SequenceInput([1], 0, tables[0])
        assert forward_over_cache(model, cache, [new]).data.dtype == np.float32


def test_logits_of_all_tokens():
    model = model_of()
    ids = np.arange(10)[None]
    with no_grad():
        expected = model(ids).data[0]
    for cache, tables in caches(model):
        new = SequenceInput(list(range(10)), 0, tables[0])
        found = forward_over_cache(model, cache, [new], last_only=False)
        np.testing.assert_allclose(found.data, expected, atol=1e-12)


def test_bytes_are_as_predicted():
    model = model_of(2)
    with Ledger().recording() as ledger:
        cache = PagedKVCache(KVSizes.of(model), 20, 4, model.slabs[0].data)
    per_token = 2 * 2 * 2 * 4 * 8               # k and v, layers, kv heads, head width, float64
    assert KVSizes.of(model).bytes_per_token(8) == per_token
    assert cache.num_bytes == 20 * 4 * per_token == ledger.peak_of["KV cache"]


def test_blocks_are_copied_and_swapped():
    model = model_of()
    cache = PagedKVCache(KVSizes.of(model), 6, 4, model.slabs[0].data, num_host_blocks=2)
    tokens = [3, 1, 4, 1, 5, 9, 2]
    expected = forward_over_cache(model, cache, [SequenceInput(tokens, 0, [0, 1])]).data
    forward_over_cache(model, cache, [SequenceInput(tokens[:6], 0, [2, 3])])
    cache.apply(swapped_out=[(2, 1), (3, 0)], swapped_in=[], copied=[])
    cache.data[:, :, [2, 3]] = np.nan
    cache.apply(swapped_out=[], swapped_in=[(1, 5), (0, 4)], copied=[(4, 2)])
    for table in ([5, 4], [5, 2]):
        found = forward_over_cache(model, cache, [SequenceInput(tokens[6:], 6, table)]).data
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_sequence_beyond_the_context_is_refused():
    model = model_of()
    (cache, tables), _ = caches(model)
    with pytest.raises(ValueError, match="of 25 tokens is longer than the model's context of 24"):
        forward_over_cache(model, cache, [SequenceInput([1] * 25, 0, [*tables[0], 17])])
