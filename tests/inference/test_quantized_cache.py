"""The 8-bit cache: bounds of its errors, blocks that begin anew, bytes; weights of fewer bits."""

import copy

import numpy as np
import pytest

from minipar.compress import Granularity, IntGrid
from minipar.compress.quantization.post_training import quantize
from minipar.inference import Engine, ModelRunner, SchedulerConfig
from minipar.inference.cache import (
    CACHES,
    KVSizes,
    PagedKVCache,
    QuantizedKVCache,
    SequenceInput,
    TokenBatch,
)
from minipar.inference.cache.quantized import EMPTY, decode, write
from minipar.inference.model import forward_over_cache
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig

BLOCK, HEADS, WIDTH = 4, 2, 8


def model_of(**options) -> GPT:
    config = GPTConfig(29, context=48, num_layers=2, num_heads=4, num_kv_heads=2, width=32,
                       **options)
    return GPT(config).initialize(seed=3)


def written(numbers: np.ndarray, steps: list[int], table: list[int], pools=None) -> tuple:
    """Codes and scales after `numbers` (t, heads, n) were written in so many tokens a step."""
    codes, scales = pools or (np.full((6, BLOCK, HEADS, WIDTH), EMPTY, np.int8),
                              np.zeros((6, HEADS), np.float32))
    start = 0
    for count in steps:
        batch = TokenBatch([SequenceInput([0] * count, start, table)], BLOCK)
        write(codes, scales, batch, numbers[start:start + count])
        start += count
    return codes, scales


@pytest.mark.parametrize("steps", [[10], [1] * 10, [3, 1, 5, 1]])
def test_errors_stay_within_their_bound(steps):
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((10, HEADS, WIDTH)) * np.arange(1, 11)[:, None, None]
    numbers = numbers.astype(np.float32)
    table = [4, 0, 3]
    codes, scales = written(numbers, steps, table)
    found = decode(codes, scales, np.float64)[table].reshape(12, HEADS, WIDTH)
    assert np.isnan(found[10:]).all()                   # slots without a token
    for block in range(3):
        rows = slice(BLOCK * block, min(BLOCK * block + BLOCK, 10))
        part, scale = numbers[rows], scales[table[block]]
        np.testing.assert_allclose(scale, abs(part).max(axis=(0, 2)) / 127, rtol=1e-6)
        peaks = np.maximum.accumulate(abs(part).max(axis=2), axis=0)         # (slots, heads)
        for head in range(HEADS):
            for i, own in enumerate(part):
                grown = len(np.unique(peaks[i:, head])) - 1
                error = abs(found[rows][i, head] - own[head]).max()
                assert error <= scale[head] * ((grown + 1) / 2 + 1e-4)


def test_a_small_token_does_not_change_those_before():
    numbers = np.ones((3, HEADS, WIDTH), np.float32)
    numbers[1:] *= 0.3
    codes, scales = written(numbers, [1, 1, 1], [2])
    assert (codes[2, 0] == 127).all() and (codes[2, 1:3] == 38).all()
    np.testing.assert_array_equal(scales[2], np.float32(1 / 127))


def test_a_block_that_is_used_again_begins_with_a_new_scale():
    large = 1000 * np.ones((4, HEADS, WIDTH), np.float32)
    small = np.full((2, HEADS, WIDTH), 0.01, np.float32)
    codes, scales = written(small, [1, 1], [5], written(large, [4], [5]))
    found = decode(codes, scales, np.float64)[5]
    np.testing.assert_allclose(found[:2], 0.01, rtol=1e-6)
    assert np.isnan(found[2:]).all()


def test_zeros_stay_zeros():
    codes, scales = written(np.zeros((2, HEADS, WIDTH), np.float32), [1, 1], [1])
    assert (decode(codes, scales, np.float32)[1, :2] == 0).all()


def test_logits_are_near_and_bytes_are_a_quarter():
    model = model_of()
    sizes, like = KVSizes.of(model), model.slabs[0].data
    with Ledger().recording() as ledger:
        cache = QuantizedKVCache(sizes, 8, BLOCK, like)
    in_floats, head_width = PagedKVCache(sizes, 8, BLOCK, like), 8
    assert cache.num_bytes == 8 * 2 * 2 * 2 * (BLOCK * head_width + 4) == ledger.peak_of["KV cache"]
    assert in_floats.num_bytes == 8 * 2 * 2 * 2 * BLOCK * head_width * 4
    ids = np.random.default_rng(1).integers(0, 29, 20).tolist()
    for counts in ([20], [7, 1, 1, 11]):
        start = 0
        for count in counts:
            new = SequenceInput(ids[start:start + count], start, [3, 0, 6, 1, 7])
            found, expected = (forward_over_cache(model, kv, [new]).data
                               for kv in (cache, in_floats))
            assert abs(found - expected).max() < 0.02 * expected.std()
            start += count


def tokens_of(model, num_blocks, **settings) -> list[list[int]]:
    runner = ModelRunner(model, num_blocks, BLOCK, QuantizedKVCache)
    engine = Engine(runner, SchedulerConfig(num_blocks, BLOCK, **settings))
    prompts = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6, 7, 8, 9, 3], [7, 7, 7]]
    generations = [engine.submit(prompt, 14, num_answers=2) for prompt in prompts]
    engine.run()
    assert runner.cache.pools[1].host.any() == bool(settings)       # whether scales were swapped
    return [answer.tokens for each in generations for answer in each.answers]


def test_an_engine_copies_and_swaps_scales_with_their_codes():
    model = model_of()
    undisturbed = tokens_of(model, 64)
    assert tokens_of(model, 14, preempt_by="swap") == undisturbed


def decoded(model, kind, ids) -> np.ndarray:
    """The logits (t, V) after each of the tokens, computed one by one from a cache."""
    cache = kind(KVSizes.of(model), -(-len(ids) // BLOCK), BLOCK, np.zeros(0, np.float32))
    return np.concatenate([forward_over_cache(model, cache, [
        SequenceInput([int(token)], i, range(cache.num_blocks))]).data
        for i, token in enumerate(ids)])


def test_errors_of_quantized_weights_and_cache_together():
    model = model_of()
    rng = np.random.default_rng(0)
    for p in model.parameters():                        # as far from even as trained weights
        p.data[...] += 0.1 * rng.standard_normal(p.shape)
    ids = rng.integers(0, 29, 40)
    expected = decoded(model, PagedKVCache, ids)
    weights = {"float": model, "int8": quantize(copy.deepcopy(model), IntGrid(8)),
               "int4": quantize(copy.deepcopy(model), IntGrid(4), Granularity("group", 32))}
    logits = {(name, cache): decoded(version, CACHES[cache], ids)
              for name, version in weights.items() for cache in CACHES}
    error = {pair: np.sqrt(np.mean((found - expected)**2)) / np.std(expected)
             for pair, found in logits.items()}
    assert error["float", "full"] == 0 < error["float", "int8"] < 0.01
    assert 0 < error["int8", "full"] < 0.02 < error["int4", "int8"] < 0.3
    same = logits["float", "int8"].argmax(axis=1) == expected.argmax(axis=1)
    assert np.mean(same) >= 0.95


def test_the_8_bit_cache_has_a_byte_a_number_and_a_scale_for_each_block_and_head():
    cache = QuantizedKVCache(KVSizes.of(model_of()), 3, 16, np.zeros(0, np.float32))
    assert cache.num_bytes / (3 * 16) == 2 * 2 * 2 * (8 + 4 / 16)


def test_chunks_change_the_logits_of_the_8_bit_cache_alone():
    # why the promise that scheduling changes no token leaves this cache out
    model = GPT(GPTConfig(31, 64, num_layers=2, num_heads=2, width=16)).initialize(2, np.float64)
    for parameter in model.parameters():
        parameter.data *= 5 if parameter.data.ndim > 1 else 1
    prompt = np.random.default_rng(11).integers(0, 31, 29).tolist()

    def first_logprob(kind, **options) -> float:
        engine = Engine(ModelRunner(model, 20, 8, kind), SchedulerConfig(20, 8, **options))
        found = engine.submit(prompt, 1, num_logprobs=31)
        engine.run()
        return found.answers[0].likeliest[0][0]

    change = {kind: abs(first_logprob(kind, token_budget=5) - first_logprob(kind))
              for kind in (PagedKVCache, QuantizedKVCache)}
    assert change[PagedKVCache] < 1e-10
    assert 1e-6 < change[QuantizedKVCache] < 0.5
