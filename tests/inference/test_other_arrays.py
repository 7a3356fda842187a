"""Decoding on arrays that refuse the host's, as CuPy's do; arrays without numbers are refused."""

import numpy as np
import pytest

from minipar.backend import to_host
from minipar.backend.shape_array import ShapeArray
from minipar.inference import Engine, ModelRunner, SamplingParams, SchedulerConfig, generate
from minipar.inference.cache import (
    CACHES,
    ContiguousKVCache,
    KVSizes,
    PagedKVCache,
    SequenceInput,
)
from minipar.inference.model import forward_over_cache
from minipar.nn import GPT, GPTConfig, RopeConfig
from tests.support.strict_array import StrictArray, as_cupy

KINDS = {"gpt": {}, "grouped, untied": {"num_kv_heads": 2, "tied": False},
         "llama": {"norm": "rms", "mlp": "swiglu", "bias": False, "rope": RopeConfig(100.0)}}
STEPS = [[SequenceInput([3, 1, 4, 1, 5, 9], 0, [2, 0]), SequenceInput([2, 7], 0, [5, 1])],
         [SequenceInput([2], 6, [2, 0]), SequenceInput([6, 5, 3], 2, [5, 1])],
         [SequenceInput([8], 7, [2, 0])]]


@pytest.fixture(autouse=True)
def cupy(monkeypatch):
    with as_cupy(monkeypatch) as module:
        yield module


def model_of(name: str, array=None) -> GPT:
    config = GPTConfig(19, context=16, num_layers=2, num_heads=4, width=16, **KINDS[name])
    return GPT(config).initialize(4, np.float64, array)


def logits(model: GPT, kind) -> list[np.ndarray]:
    like = model.slabs[0].data
    if kind is ContiguousKVCache:
        cache = kind(KVSizes.of(model), 6, 16, like)
    else:
        cache = kind(KVSizes.of(model), 6, 4, like, num_host_blocks=1)
    found = []
    for inputs in STEPS:
        found += [to_host(forward_over_cache(model, cache, inputs, last_only).data)
                  for last_only in (True, False)]
        if kind is not ContiguousKVCache:
            cache.apply(swapped_out=[(2, 1)], swapped_in=[], copied=[(0, 4)])
            cache.apply(swapped_out=[], swapped_in=[(1, 2)], copied=[(4, 0)])
    return found


@pytest.mark.parametrize("kind", [*CACHES.values(), ContiguousKVCache])
@pytest.mark.parametrize("name", KINDS)
def test_on_a_device_as_on_the_host(name, kind):
    device = model_of(name, StrictArray(np.empty(0)))
    for found, expected in zip(logits(device, kind), logits(model_of(name), kind), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-13)


def test_an_engine_and_generate_on_a_device():
    def tokens(model):
        engine = Engine(ModelRunner(model, 12, 4), SchedulerConfig(12, 4))
        found = [engine.submit(prompt, 8, SamplingParams(temperature), num_answers=2)
                 for prompt, temperature in (([1, 2, 3], 0), ([4, 5, 6, 7, 8], 1))]
        engine.run()
        return [answer.tokens for each in found for answer in each.answers] \
            + [list(generate(model, np.array([1, 2, 3]), 20, seed=1))]
    assert tokens(model_of("gpt", StrictArray(np.empty(0)))) == tokens(model_of("gpt"))


def test_arrays_without_numbers_are_refused_but_their_bytes_are_known():
    model = model_of("gpt", ShapeArray((0,), np.float64))
    assert KVSizes.of(model).bytes_per_token(8) == 2 * 2 * 16 * 8
    with pytest.raises(TypeError, match="a cache of keys and values needs numbers: its bytes"):
        PagedKVCache(KVSizes.of(model), 6, 4, model.slabs[0].data)
