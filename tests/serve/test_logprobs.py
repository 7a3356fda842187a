"""Log-probabilities of completions: of tokens with one text, of echoed prompts; their places."""

import asyncio
import json
import math

import numpy as np
import pytest
from starlette.testclient import TestClient

from minipar.data import ByteBPE, CharacterVocabulary, Numbers
from minipar.data.byte_bpe import BYTES
from minipar.inference import Engine, ModelRunner, SchedulerConfig
from minipar.inference.parallel.scoring import CHUNK, prompt_logprobs
from minipar.nn import GPT, GPTConfig
from minipar.serve import service as service_module
from minipar.serve.app import make_app
from minipar.serve.detokenizer import Detokenizer
from minipar.serve.protocol import read_completion
from minipar.serve.service import Service
from minipar.serve.streaming import AnswerTexts, stream_events
from minipar.serve.text_model import TextModel
from minipar.serve.writer import LEAST_LOGPROB, CompletionWriter

LETTERS = CharacterVocabulary.from_text("abcdefghij\n")
FIELDS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def client_of(model: GPT, tokenizer) -> TestClient:
    engine = Engine(ModelRunner(model, 60, 4), SchedulerConfig(60, 4))
    return TestClient(make_app(TextModel("tiny", model, tokenizer), engine))


def choices_of(client, **body) -> list[dict]:
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def streamed_choice(client, **body) -> dict:
    """The choice that the chunks of a stream add up to."""
    text = client.post("/v1/completions", json={**body, "stream": True}).text
    parts = [json.loads(line[6:])["choices"][0] for line in text.split("\n\n")[:-2]]
    logprobs = {name: sum((part["logprobs"][name] for part in parts), []) for name in FIELDS}
    return {"index": 0, "text": "".join(part["text"] for part in parts), "logprobs": logprobs,
            "finish_reason": parts[-1]["finish_reason"]}


def model_that_says(answer: str, vocab_size: int = 256) -> GPT:
    """A GPT that goes on with the bytes of `answer` whatever it is asked."""
    ids = [*answer.encode()]
    model = GPT(GPTConfig(vocab_size, 48, 1, 1, 48)).initialize(0, np.float64)
    state = {name: 0 * p.data for name, p in model.named_parameters()}
    state["wte.weight"][ids, range(len(ids))] = 3
    state["ln_f.weight"], state["wpe.weight"] = np.ones(48), 99 * np.eye(48)
    model.load_state_dict(state)
    return model


def expected_logprobs(model: GPT, ids) -> np.ndarray:
    """Row i: the log-probabilities (V,) after token i."""
    logits = model(np.array(ids)[None]).data[0]
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("count", [0, 1, 4, 20])
def test_tokens_of_one_text_are_entries_of_their_own(count):
    model = GPT(GPTConfig(320, 16, 1, 2, 8)).initialize(5, np.float64)  # 256 … 319 have no text
    with client_of(model, ByteBPE(BYTES, [], 320)) as client:
        for seed in range(3):
            body = {"prompt": [97, 98], "max_tokens": 10, "logprobs": count, "seed": seed}
            (choice,) = choices_of(client, **body)
            found = choice["logprobs"]
            rows = zip(*(found[name] for name in FIELDS[:3]))
            for token, logprob, likeliest in rows:
                assert count <= len(likeliest) <= count + 1
                assert likeliest[token] == logprob
            assert streamed_choice(client, **body) == choice


def test_likeliest_tokens_are_named_by_text_or_number():
    model = GPT(GPTConfig(260, 8, 1, 2, 8)).initialize(5, np.float64)
    with client_of(model, ByteBPE(BYTES, [], 260)) as client:
        (choice,) = choices_of(client, prompt=[97], max_tokens=1, logprobs=20, temperature=0)
    row = expected_logprobs(model, [97])[0]
    (likeliest,) = choice["logprobs"]["top_logprobs"]
    by_number = {name: value for name, value in likeliest.items() if name.startswith("token_id:")}
    assert len(likeliest) == 20 and by_number       # bytes from 128 on are all shown as U+FFFD
    for name, value in by_number.items():
        assert row[int(name.removeprefix("token_id:"))] == pytest.approx(value, abs=1e-12)
    assert list(likeliest.values()) == pytest.approx(sorted(row)[:-21:-1], abs=1e-12)


@pytest.mark.parametrize("options", [{}, {"echo": True}, {"stop": "jà"}, {"stop": ["!?", "é"]}])
@pytest.mark.parametrize("answer", ["→ 🙂🙂, déjà!", "🙂", "plain", "é" * 9])
def test_offsets_are_places_in_the_text(answer, options):
    ids = [*answer.encode()]
    with client_of(model_that_says(answer), ByteBPE(BYTES, [])) as client:
        body = {"prompt": "x", "max_tokens": len(ids), "logprobs": 1, "temperature": 0, **options}
        (choice,) = choices_of(client, **body)
        assert streamed_choice(client, **body) == choice
    if options.get("echo"):
        ids = [120, *ids]
    expected = [len(bytes(ids[:i]).decode(errors="ignore")) for i in range(len(ids))]
    found = choice["logprobs"]["text_offset"]
    assert found == [min(place, len(choice["text"])) for place in expected[:len(found)]]


def test_bytes_that_are_no_character_have_places_too():
    # \xe2 is shown as U+FFFD when "a" has come, and a stop string is held back meanwhile
    shown = Detokenizer(ByteBPE(BYTES, []), ["a!"])
    assert shown.update([0xe2, 97], False) == "\ufffd"
    assert shown.places([0xe2, 97]) == [0, 1]
    assert shown.update([0xe2, 97, 98], True) == "ab"
    assert shown.places([0xe2, 97, 98], 1) == [1, 2]


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
@pytest.mark.parametrize("prompts", [[[3, 1, 4, 1, 5, 9, 2], [6, 5], [7]], "abc"])
def test_echo_gives_the_prompts_log_probabilities(prompts, max_tokens):
    model = GPT(GPTConfig(11, 20, 2, 2, 8)).initialize(9, np.float64)
    with client_of(model, LETTERS) as client:
        found = choices_of(client, prompt=prompts, echo=True, logprobs=2, max_tokens=max_tokens,
                           temperature=0, n=2)
        whole = found[0]
        first = prompts if isinstance(prompts, str) else prompts[0]
        assert streamed_choice(client, prompt=first, echo=True, logprobs=2, temperature=0,
                               max_tokens=max_tokens) == whole
    assert [choice["index"] for choice in found] == [*range(len(found))]
    for choice in found:
        ids = LETTERS.encode(choice["text"])
        prompt = "abc" if prompts == "abc" else prompts[choice["index"] // 2]
        assert len(ids) == len(prompt) + max_tokens and choice["finish_reason"] == "length"
        rows, logprobs = expected_logprobs(model, ids), choice["logprobs"]
        assert logprobs["tokens"] == [*choice["text"]]
        assert logprobs["text_offset"] == [*range(len(ids))]
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        expected = [row[token] for row, token in zip(rows, ids[1:])]
        assert logprobs["token_logprobs"][1:] == pytest.approx(expected, abs=1e-12)
        for row, token, likeliest in zip(rows, ids[1:], logprobs["top_logprobs"][1:]):
            best = {*np.argsort(-row)[:2].tolist(), int(token)}
            assert likeliest == pytest.approx({LETTERS.decode(np.array([each])): row[each]
                                               for each in best}, abs=1e-12)


def test_a_whole_context_is_scored():
    model = GPT(GPTConfig(11, 20, 1, 2, 8)).initialize(9, np.float64)
    with client_of(model, LETTERS) as client:
        response = client.post("/v1/completions", json={
            "prompt": "a" * 20, "echo": True, "logprobs": 0, "max_tokens": 0}).json()
    assert response["usage"] == {"prompt_tokens": 20, "completion_tokens": 0, "total_tokens": 20}
    assert len(response["choices"][0]["logprobs"]["tokens"]) == 20


def test_a_long_prompt_is_scored_in_chunks():
    model = GPT(GPTConfig(7, CHUNK + 60, 1, 2, 8)).initialize(1, np.float64)
    prompt = np.random.default_rng(0).integers(0, 7, CHUNK + 50).tolist()
    found = [logprob for logprob, _ in prompt_logprobs(model, prompt, 0)]
    rows = expected_logprobs(model, prompt)
    np.testing.assert_allclose(found, rows[range(len(prompt) - 1), prompt[1:]], atol=1e-12)


def test_a_token_that_never_comes_is_written_as_a_number():
    model = GPT(GPTConfig(11, 20, 1, 2, 8, tied=False)).initialize(9, np.float64)
    head = model.lm_head.weight.data
    with client_of(model, LETTERS) as client, np.errstate(over="ignore"):
        head[...], head[:, 4] = 0, -1e308                      # logits 0 and -inf
        model.ln_f.weight.data[...], model.ln_f.bias.data[...] = 0, 1
        (choice,) = choices_of(client, prompt=[3, 4], echo=True, logprobs=20, max_tokens=0)
    assert choice["logprobs"]["token_logprobs"] == [None, LEAST_LOGPROB]
    assert sorted(choice["logprobs"]["top_logprobs"][1].values()) == \
        pytest.approx([LEAST_LOGPROB] + 10 * [-math.log(10)])


def test_a_model_that_fails_at_a_prompt_is_reported():
    model = GPT(GPTConfig(11, 20, 1, 2, 8)).initialize(9, np.float64)
    with client_of(model, LETTERS) as client:
        model.ln_f.weight.data[...] = np.nan
        body = {"prompt": "abc", "echo": True, "logprobs": 0, "max_tokens": 0}
        response = client.post("/v1/completions", json=body)
        assert response.status_code == 500
        assert "the model has failed: the model's logits hold NaN" in response.text
        stream = client.post("/v1/completions", json={**body, "stream": True}).text
        assert "the model has failed" in stream and "[DONE]" not in stream


def test_prompts_of_one_request_have_random_numbers_of_their_own():
    model = GPT(GPTConfig(1000, 16, 1, 1, 4)).initialize(0, np.float64)
    model.load_state_dict({name: 0 * p.data for name, p in model.named_parameters()})
    prompts = [[7, i] for i in range(6)]
    with client_of(model, Numbers(1000)) as client:
        def texts(**body) -> list[str]:
            return [choice["text"] for choice in choices_of(client, max_tokens=4, n=2, **body)]
        assert len(set(texts(prompt=prompts) + texts(prompt=prompts))) == 24
        alone = [text for prompt in prompts for text in texts(prompt=prompt, seed=3)]
        assert texts(prompt=prompts, seed=3) == alone       # with a seed: each as if alone


def test_a_client_that_leaves_ends_the_scoring_of_prompts(monkeypatch):
    model = GPT(GPTConfig(11, 20, 1, 2, 8)).initialize(9, np.float64)
    text = TextModel("tiny", model, LETTERS)
    asked = read_completion({"prompt": ["abc"] * 50, "echo": True, "logprobs": 0}, text)
    engine = Engine(ModelRunner(model, 60, 4), SchedulerConfig(60, 4))
    scored = []
    monkeypatch.setattr(service_module, "prompt_logprobs",
                        lambda *args: scored.append(1) or prompt_logprobs(*args))

    async def run() -> None:
        service = Service(engine)           # it is not started: only prompts are scored
        generations = await service.submit(asked.prompts, 16, asked.params, 1, None, 0)
        texts, writer = AnswerTexts(text, asked, generations), CompletionWriter(text, asked)
        events = stream_events(service, texts, writer, generations, False)
        task = asyncio.create_task(anext(events))
        while not scored:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert 1 <= len(scored) < 50 and not engine.has_requests
