"""Beam search with a model: the answers of a search without cache, and of trying everything."""

import itertools

import numpy as np
import pytest

from minipar.autograd import no_grad
from minipar.inference.sampling.beam_search import FinishedBeam, beam_search, log_softmax
from minipar.nn import GPT, GPTConfig

VOCABULARY = 6
MODEL = GPT(GPTConfig(VOCABULARY, 20, num_layers=2, num_heads=4, num_kv_heads=2,
                      width=16)).initialize(seed=3, dtype=np.float64)
for each in MODEL.parameters():
    each.data *= 3                          # distributions far from uniform


def logprobs_after(tokens: list[int]) -> np.ndarray:
    with no_grad():
        return log_softmax(MODEL(np.array([tokens])).data[:, -1])[0]


def without_cache(prompt, width, max_tokens, penalty, stop) -> list[FinishedBeam]:
    """The same search by whole forwards, to the very end."""
    beams, ended = [([], 0.0)], []
    for length in range(1, max_tokens + 1):
        offers = [([*tokens, token], total + logprob) for tokens, total in beams
                  for token, logprob in enumerate(logprobs_after([*prompt, *tokens]))]
        offers = sorted(offers, key=lambda offer: -offer[1])[:width * (1 + len(stop))]
        ended += [FinishedBeam(tokens, total, total / length ** penalty) for tokens, total in offers
                  if tokens[-1] in stop or length == max_tokens]
        beams = [offer for offer in offers if offer[0][-1] not in stop][:width]
        if not beams:
            break
    return sorted(ended, key=lambda answer: -answer.score)[:width]


def assert_equal(found: list[FinishedBeam], expected: list[FinishedBeam]) -> None:
    assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
    for name in ("logprob", "score"):
        np.testing.assert_allclose([getattr(answer, name) for answer in found],
                                   [getattr(answer, name) for answer in expected], atol=1e-12)


@pytest.mark.parametrize("stop", [(), (2,), (0, 5)])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("width", [1, 2, 5, 9])
def test_answers_are_those_without_a_cache(width, penalty, stop):
    for prompt in ([1], [3, 1, 4, 1, 5]):
        found = beam_search(MODEL, prompt, width, 7, penalty, stop, block_size=4)
        assert_equal(found, without_cache(prompt, width, 7, penalty, stop))


def test_a_wide_search_tries_everything():
    scores = {tokens: sum(logprobs_after([2, *tokens[:i]])[token]
                          for i, token in enumerate(tokens))
              for tokens in itertools.product(range(VOCABULARY), repeat=3)}
    best = sorted(scores, key=lambda tokens: -scores[tokens])[:5]
    found = beam_search(MODEL, [2], VOCABULARY**2, 3, block_size=2)
    assert [tuple(answer.tokens) for answer in found[:5]] == best


def test_a_width_of_one_is_greedy():
    tokens: list[int] = []
    for _ in range(8):
        tokens.append(int(np.argmax(logprobs_after([4, *tokens]))))
    assert [answer.tokens for answer in beam_search(MODEL, [4], 1, 8)] == [tokens]


@pytest.mark.parametrize(("arguments", "message"), [
    (([], 2, 3), "not 0 tokens, 2, 3 and 1.0"), (([1], 0, 3), "not 1 tokens, 0, 3"),
    (([1], 2, 0), "2, 0 and 1.0"), (([1], 2, 3, -1.0), "penalty of at least 0.*-1.0"),
    (([1] * 15, 2, 6), "max_tokens=6 are more than the model's context of 20")])
def test_mistakes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        beam_search(MODEL, *arguments)
