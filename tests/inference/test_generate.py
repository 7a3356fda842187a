"""generate with a cache: the tokens of whole forwards, and only new tokens are computed."""

import numpy as np
import pytest

from minipar.autograd import Meter, no_grad
from minipar.inference import Engine, ModelRunner, SamplingParams, SchedulerConfig, generate
from minipar.inference.sampling import next_token
from minipar.nn import GPT, GPTConfig, RopeConfig

SIZES = {"plain": {}, "grouped": {"num_kv_heads": 2}, "untied": {"tied": False},
         "llama": {"norm": "rms", "mlp": "swiglu", "bias": False, "rope": RopeConfig(100.0)}}


def model_of(name: str, context: int = 12, dtype=np.float64) -> GPT:
    config = GPTConfig(17, context=context, num_layers=2, num_heads=4, width=16, **SIZES[name])
    return GPT(config).initialize(seed=2, dtype=dtype)


def by_whole_forwards(model, prompt, num_tokens, temperature, seed) -> list[int]:
    ids, params = list(prompt), SamplingParams(temperature, seed=seed)
    for _ in range(num_tokens):
        with no_grad():
            logits = model(np.array([ids[-model.config.context:]])).data[0, -1]
        ids.append(next_token(logits, params, ids[:len(prompt)], ids[len(prompt):]))
    return ids[len(prompt):]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("prompt, num_tokens", [([3, 1, 4], 5), ([3, 1, 4], 9), ([5], 20),
                                                (range(12), 3), (range(15), 4)])
def test_the_tokens_of_whole_forwards(name, temperature, prompt, num_tokens):
    model, prompt = model_of(name), np.array(prompt)
    found = list(generate(model, prompt, num_tokens, temperature, seed=7))
    assert found == by_whole_forwards(model, prompt, num_tokens, temperature, 7)


@pytest.mark.parametrize("temperature", [0, 0.8, 1.5])
def test_the_engine_draws_the_same_tokens(temperature):
    model = model_of("plain", context=32)
    engine = Engine(ModelRunner(model, 10, 4), SchedulerConfig(10, 4))
    generation = engine.submit([3, 1, 4], 20, SamplingParams(temperature, seed=7))
    assert list(generate(model, np.array([3, 1, 4]), 20, temperature, seed=7)) == list(
        engine.stream(generation))


def test_only_new_tokens_are_computed_within_the_context():
    model = model_of("plain", context=64)
    tokens, flops = generate(model, np.arange(16), 40), []
    for _ in range(40):
        meter = Meter()
        with meter.running():
            next(tokens)
        flops.append(meter.total_flops("forward"))
    assert len(set(flops[1:])) == 1 and flops[0] > 12 * flops[1]
