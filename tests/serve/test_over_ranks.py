"""A server on many ranks: rank 0 leads; all ranks do what one engine would."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.data import CharacterVocabulary
from minipar.inference import Engine, ModelRunner, SamplingParams, SchedulerConfig
from minipar.inference.cache import CACHES
from minipar.inference.parallel.scoring import prompt_logprobs
from minipar.nn import GPT, GPTConfig
from minipar.serve.detokenizer import Detokenizer
from minipar.serve.over_ranks import LeadingEngine
from minipar.serve.text_model import make_engine
from minipar.testing import worlds

CONFIG = SchedulerConfig(30, 4)
PROMPT = [1, 5, 2, 2, 7]
VOCABULARY = CharacterVocabulary.from_text("abcdefgh \n")
MESHES = [{"tp": 2}, {"pp": 2}, {"dp": 2}, {"tp": 2, "pp": 2}, {"dp": 2, "pp": 2},
          {"dp": 2, "tp": 2}]


def gpt() -> GPT:
    return GPT(GPTConfig(10, 40, num_layers=2, num_heads=2, width=8)).initialize(3, np.float64)


def served(engine) -> list:
    """Answers of requests that come and go between steps; the third is cancelled."""
    def submit(prompt: list[int], seed: int, num_logprobs: int | None = None, stops=()):
        return engine.submit(prompt, 12, SamplingParams(seed=seed), 2, (),
                             Detokenizer(VOCABULARY, stops), num_logprobs)
    found = [submit([1, 2, 3], 1, 3), submit([4], 2, stops=("a", "b"))]
    engine.step()
    engine.step()
    found += [submit([5, 6], 3), submit([7] * 9, 4, 20)]
    engine.step()
    engine.cancel(found.pop(2))
    found.append(submit([8, 1], 5, 0))
    while engine.has_requests:
        engine.step()
    assert all(generation.is_done for generation in found)
    assert not any(each.scheduler.pool.num_used for each in engine.engines)
    return [answer for generation in found for answer in generation.answers]


def led(comm, sizes, cache="full"):
    """What rank 0 found, and the scores of a prompt; the others follow."""
    engine = make_engine(gpt(), CONFIG, comm, sizes, CACHES[cache])
    leading = LeadingEngine(engine, comm, VOCABULARY)
    if comm.rank:
        leading.follow()
        assert not any(each.scheduler.pool.num_used for each in engine.engines)
        return []
    answers, scores = served(leading), leading.score(PROMPT, 3)
    leading.end()
    return answers, scores


def ranks_of(sizes: dict[str, int]) -> int:
    return int(np.prod([*sizes.values()]))


def alone(cache="full"):
    """The same, on one process."""
    model = gpt()
    return (served(Engine(ModelRunner(model, 30, 4, CACHES[cache]), CONFIG)),
            prompt_logprobs(model, PROMPT, 3))


def check(found, expected):
    for (logprob, likeliest), (other, others) in zip(found[1], expected[1], strict=True):
        assert logprob == pytest.approx(other, abs=1e-12) and [*likeliest] == [*others]
    for one, other in zip(found[0], expected[0], strict=True):
        assert (one.tokens, one.finish_reason) == (other.tokens, other.finish_reason)
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-12)
        assert [*map(sorted, one.likeliest)] == [*map(sorted, other.likeliest)]


@pytest.mark.parametrize("sizes", MESHES, ids=str)
@pytest.mark.one_in(2)
def test_answers_are_those_of_one_process(sizes):
    expected = alone()
    assert {answer.finish_reason for answer in expected[0]} == {"length", "stop"}
    check(Cluster(ranks_of(sizes)).run(lambda comm: led(comm, sizes))[0][0], expected)


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("cache", ["full", "int8"])
@pytest.mark.one_in(2)
def test_answers_are_the_same_on_real_ranks(world, cache):
    expected = alone(cache)

    def body(comm):
        found = led(comm, {"tp": 2, "pp": 2}, cache)
        if comm.rank == 0:
            check(found, expected)
    world.run(body)


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_a_model_that_fails_is_known_on_all_ranks_and_they_go_on(sizes):
    def body(comm):
        model = gpt()
        model.wte.weight.data[9] = np.nan           # a token of the last rank
        engine = make_engine(model, CONFIG, comm, sizes)
        leading = LeadingEngine(engine, comm, VOCABULARY)
        if comm.rank:
            leading.follow()
            return []
        failed = []
        for prompt in ([1], [2, 3], [4]):
            failed.append(leading.submit(prompt, 5))
            with pytest.raises(ValueError, match="check its weights"):
                while leading.has_requests:
                    leading.step()
            while leading.has_requests:
                leading.step()
        with pytest.raises(ValueError, match="check its weights"):
            leading.score(PROMPT, 2)
        leading.end()
        return [generation.was_cancelled and generation.is_done for generation in failed]
    assert Cluster(ranks_of(sizes)).run(body)[0][0] == [True] * 3
