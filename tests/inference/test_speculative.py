"""Speculative decoding: recorded values, an unchanged distribution, greedy as without a draft."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from minipar.autograd import no_grad
from minipar.inference.sampling import SamplingParams, next_token, probabilities
from minipar.inference.sampling.speculative import (
    CachedModel,
    SpeculativeDecoder,
    _SpeculativeAnswer,
    acceptance_probability,
    acceptance_rate,
    append_drafts,
    expected_tokens,
    residual,
    settle,
    verify,
)
from minipar.inference.scheduling import BlockPool, CachedSequence
from minipar.nn import GPT, GPTConfig

ARRAYS = Path(__file__).parent / "arrays"
RECORDED = np.load(ARRAYS / "speculative.npz")
P, Q = RECORDED["p"], RECORDED["q"]         # (last token, token)
VOCABULARY, CONTEXT = 7, 40


def gpt(seed: int, layers: int, width: int, vocab_size: int = VOCABULARY) -> GPT:
    return GPT(GPTConfig(vocab_size, CONTEXT, num_layers=layers, num_heads=2,
                         width=width)).initialize(seed=seed, dtype=np.float64)


TARGET, DRAFT = gpt(1, 2, 16), gpt(2, 1, 8)
for each in (*TARGET.parameters(), *DRAFT.parameters()):
    each.data *= 4                          # distributions far from uniform


def without_draft(prompt, count, params) -> list[int]:
    output: list[int] = []
    for _ in range(count):
        with no_grad():
            logits = TARGET(np.array([[*prompt, *output]])).data[0, -1]
        output.append(next_token(logits, params, prompt, output))
    return output


def lengths(num_drafts: int, last: int) -> np.ndarray:
    """Probabilities of 1 … num_drafts + 1 tokens behind token `last` of the recorded chain."""
    alpha = acceptance_rate(P[last], Q[last])
    if num_drafts == 0:
        return np.ones(1)
    found = np.zeros(num_drafts + 1)
    found[0] = 1 - alpha
    for token in range(4):
        accepted = Q[last, token] * acceptance_probability(P[last], Q[last], token)
        found[1:] += accepted * lengths(num_drafts - 1, token)
    return found


def test_recorded_values():
    for last in range(4):
        assert acceptance_rate(P[last], Q[last]) == pytest.approx(RECORDED["accept"][last],
                                                                  abs=1e-12)
        np.testing.assert_allclose(residual(P[last], Q[last]), RECORDED["residual"][last],
                                   atol=1e-12, rtol=0)
        for count in (1, 2, 3):
            found = lengths(count, last)
            np.testing.assert_allclose(found, RECORDED[f"lengths_g{count}_last{last}"],
                                       atol=1e-12, rtol=0)
            assert found @ np.arange(1, count + 2) == pytest.approx(
                RECORDED["expected_tokens"][count - 1, last], abs=1e-12)
    formula = [[expected_tokens(alpha, gamma) for gamma in RECORDED["formula_gamma"]]
               for alpha in RECORDED["formula_alpha"]]
    np.testing.assert_allclose(formula, RECORDED["formula_tokens"], atol=1e-12, rtol=0)
    assert expected_tokens(1.0, 4) == 5


def test_blocks_of_rejected_drafts_go_back_as_recorded():
    document = json.loads((ARRAYS / "speculative_rewind.json").read_text())
    pool = BlockPool(document["num_blocks"], document["block_size"])
    sequence = CachedSequence("", [0] * document["start_computed"])
    assert sequence.allocate(pool, sequence.num_pending) == document["start_table"]
    sequence.num_computed = document["start_computed"]
    sequence.tokens.append(0)
    for step in document["steps"]:
        known = len(sequence.tokens)
        assert append_drafts(sequence, pool, [0] * step["proposed"]) == step["allocated"]
        assert sequence.table == step["table_in_step"]
        sequence.num_computed = len(sequence.tokens)
        freed = settle(sequence, pool, known, [0] * step["emitted"])
        assert (freed, sequence.table) == (step["freed"], step["table"])
        assert sequence.num_computed == step["computed"] == len(sequence.tokens) - 1
    assert list(pool.free) == document["summary"]["free_queue_at_end"]


def test_the_distribution_is_the_targets_exactly():
    """Every draft, and every cell of the random numbers: p and q are made so that cells are exact.
    """
    p = np.array([[2, 1, 1], [1, 0, 3], [1, 2, 1]]) / 4
    q = np.array([[1, 2, 1], [3, 1, 0]]) / 4
    cells = (np.arange(12) + 0.5) / 12
    found = np.zeros((3, 4, 4))             # up to three tokens; 3: not reached
    for drafts in itertools.product(range(3), repeat=2):
        weight = q[0, drafts[0]] * q[1, drafts[1]]
        if not weight:
            continue
        for check in itertools.product(cells, repeat=2):
            for u in cells:
                tokens = verify(p, q, drafts, check, [u] * 3)
                found[(*tokens, 3, 3)[:3]] += weight / 12**3
    assert found.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(found.sum((1, 2)), p[0], atol=1e-12)
    second = found[:, :3].sum(2)            # only after an accepted first draft
    np.testing.assert_allclose(second / second.sum(1, keepdims=True), np.tile(p[1], (3, 1)),
                               atol=1e-12)
    third = found[:, :3, :3].sum((0, 1))    # the bonus
    np.testing.assert_allclose(third / third.sum(), p[2], atol=1e-12)


@pytest.mark.parametrize("params", [
    SamplingParams(temperature=0.7, top_k=4),
    pytest.param(SamplingParams(), marks=pytest.mark.slow),
    pytest.param(SamplingParams(top_p=0.8, repetition_penalty=1.5), marks=pytest.mark.slow)])
def test_the_distribution_is_the_targets_statistically(params):
    decoder, prompt, runs = SpeculativeDecoder(TARGET, DRAFT, 3), [1, 4], 500
    counts = np.zeros((VOCABULARY, VOCABULARY))
    for seed in range(runs):
        some = SamplingParams(**{**vars(params), "seed": seed})
        counts[tuple(decoder.generate(prompt, 2, some))] += 1
    expected = np.zeros_like(counts)
    with no_grad():
        first = probabilities(TARGET(np.array([prompt])).data[0, -1], params, prompt, [])
        for token in range(VOCABULARY):
            logits = TARGET(np.array([[*prompt, token]])).data[0, -1]
            expected[token] = runs * first[token] * probabilities(logits, params, prompt, [token])
    assert not counts[expected == 0].any()
    likely = expected > 3
    chi = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    freedom = likely.sum() - 1
    assert freedom > 3 and chi < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("num_drafts", [1, 2, 5, 30])
@pytest.mark.parametrize("draft", [DRAFT, TARGET], ids=["small", "itself"])
@pytest.mark.one_in(2)
def test_greedy_is_greedy(num_drafts, draft):
    params = SamplingParams(temperature=0)
    decoder = SpeculativeDecoder(TARGET, draft, num_drafts, block_size=4)
    for prompt in ([3], [1, 2, 3, 4], [5, 6, 0, 1, 2]):
        expected = without_draft(prompt, 20, params)
        assert list(decoder.generate(prompt, 20, params)) == expected
    if draft is TARGET:
        assert decoder.stats.accepted == decoder.stats.drafted and decoder.stats.alpha == 1


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_stop_token_ends_the_answer_wherever_it_comes(place):
    """First; inside the drafts; as the bonus behind three accepted ones."""
    params, prompt = SamplingParams(seed=11, temperature=2), [3, 1]
    decoder = SpeculativeDecoder(TARGET, TARGET, 3, block_size=4)       # accepts every draft
    whole = list(decoder.generate(prompt, 12, params))
    stop = {whole[place]}
    found = list(decoder.generate(prompt, 12, params, stop))
    assert found == whole[:whole.index(whole[place]) + 1]
    assert found[-1] in stop


def test_both_caches_are_those_of_the_tokens_alone():
    """After every step, that is also after the bonus token, whose draft was never computed."""
    for draft in (DRAFT, TARGET):
        decoder = SpeculativeDecoder(TARGET, draft, 3, block_size=4)
        answer = _SpeculativeAnswer(decoder, [1, 2, 3], 18, SamplingParams(seed=4))
        while len(answer.output) < 18:
            answer.output += answer.step()
            for model in (answer.target, answer.draft):
                assert model.sequence.tokens == [1, 2, 3, *answer.output]
                computed = model.sequence.num_computed
                alone = CachedModel(model.model, [*model.sequence.tokens[:computed], 0], 1, 4)
                for i in range(computed):
                    place, slot = model.sequence.table[i // 4], i % 4
                    np.testing.assert_allclose(
                        model.cache.data[:, :, place, slot],
                        alone.cache.data[:, :, alone.sequence.table[i // 4], slot], atol=1e-12)
        assert answer.target.sequence.num_computed == len(answer.output) + 2


def test_tokens_per_call_are_near_the_formula():
    decoder = SpeculativeDecoder(TARGET, DRAFT, 3)
    for seed in range(25):
        list(decoder.generate([1], 35, SamplingParams(seed=seed, temperature=1.5)))
    stats = decoder.stats
    assert 0.2 < stats.alpha < 0.95 and stats.accepted < stats.drafted
    assert stats.accepted / stats.checked == pytest.approx(stats.alpha, abs=0.05)
    assert stats.tokens_per_call == pytest.approx(expected_tokens(stats.alpha, 3), rel=0.1)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: SpeculativeDecoder(TARGET, gpt(1, 1, 8, 9)), "draft knows 9 tokens, the target 7"),
    (lambda: SpeculativeDecoder(TARGET, DRAFT, 0), "num_drafts must be at least 1, not 0"),
    (lambda: SpeculativeDecoder(TARGET, DRAFT).generate([], 3), "a prompt of 0 tokens"),
    (lambda: SpeculativeDecoder(TARGET, DRAFT).generate([1], 40), "at most 40 together")])
def test_mistakes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
