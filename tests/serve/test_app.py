"""`/v1/completions`: answers, streams, refusals, clients that leave, a model that fails."""

import asyncio
import json

import numpy as np
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from minipar.data import CharacterVocabulary
from minipar.inference import Engine, ModelRunner, SchedulerConfig
from minipar.nn import GPT, GPTConfig
from minipar.serve import app
from minipar.serve.app import make_app
from minipar.serve.protocol import BadRequest
from minipar.serve.text_model import TextModel

VOCABULARY = CharacterVocabulary.from_text("abcdefgh \n")


def make(num_blocks: int = 30) -> tuple[TextModel, Engine]:
    model = GPT(GPTConfig(10, 40, num_layers=1, num_heads=2, width=8)).initialize(3, np.float64)
    config = SchedulerConfig(num_blocks, 4)
    return TextModel("tiny", model, VOCABULARY), Engine(ModelRunner(model, num_blocks, 4), config)


@pytest.fixture
def server():
    text, engine = make()
    with TestClient(make_app(text, engine)) as client:
        client.engine = engine
        yield client
    assert not engine.scheduler.pool.num_used


def complete(client, **body):
    return client.post("/v1/completions", json={"seed": 1, **body})


def events(response) -> list:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_an_answer_has_openais_form(server):
    found = complete(server, prompt="abc", max_tokens=6).json()
    assert found["object"] == "text_completion" and found["model"] == "tiny"
    (choice,) = found["choices"]
    assert choice["index"] == 0 and choice["finish_reason"] == "length"
    assert len(choice["text"]) == 6
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}


def test_a_stream_is_the_same_text(server):
    body = {"prompt": ["abc", "d"], "max_tokens": 6, "n": 2, "logprobs": 2, "echo": True}
    whole = complete(server, **body).json()["choices"]
    chunks = events(complete(server, **body, stream=True,
                             stream_options={"include_usage": True}))
    assert chunks[-1]["usage"]["completion_tokens"] == 24
    for choice in whole:
        mine = [each for chunk in chunks for each in chunk["choices"]
                if each["index"] == choice["index"]]
        assert "".join(each["text"] for each in mine) == choice["text"]
        assert [each["finish_reason"] for each in mine][-1] == "length"
        assert sum((each["logprobs"]["token_logprobs"] for each in mine), []) == \
            choice["logprobs"]["token_logprobs"]
        assert sum((each["logprobs"]["text_offset"] for each in mine), []) == \
            choice["logprobs"]["text_offset"]
        assert choice["logprobs"]["text_offset"] == [*range(len(choice["text"]))]
    assert [choice["text"][0] for choice in whole] == ["a", "a", "d", "d"]


def test_a_model_of_null_is_the_only_one(server):
    assert complete(server, prompt="a", model=None).status_code == 200


def test_a_body_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr(app, "MOST_SECONDS", 0.01)

    async def receive():
        await asyncio.Event().wait()

    with pytest.raises(BadRequest, match="did not end within 0.01 seconds") as refused:
        asyncio.run(app.read_json(Request({"type": "http"}, receive)))
    assert refused.value.status == 408


def test_tokens_are_a_prompt_too_and_the_seed_counts(server):
    texts = [complete(server, prompt=prompt, max_tokens=9, seed=seed).json()["choices"][0]["text"]
             for prompt, seed in (("ab", 1), ([2, 3], 1), ([[2, 3]], 1), ("ab", 2))]
    assert texts[0] == texts[1] == texts[2] != texts[3]


def test_a_stop_string_is_no_part_of_the_answer(server):
    text = complete(server, prompt="a", max_tokens=20).json()["choices"][0]["text"]
    stop = text[5:7]
    choice = complete(server, prompt="a", max_tokens=20, stop=stop).json()["choices"][0]
    assert choice["text"] == text[:text.index(stop)] and choice["finish_reason"] == "stop"


@pytest.mark.parametrize(("body", "status", "param", "message"), [
    ({"prompt": ""}, 400, "prompt", "the prompt is empty"),
    ({"prompt": "xyz"}, 400, "prompt", "character 'x' at position 0 is not among the 10"),
    ({"prompt": {}}, 400, "prompt", "prompt is a text, a list of texts"),
    ({"prompt": ["a", 1]}, 400, "prompt", "not a number"),
    ({"prompt": [[], [1]]}, 400, "prompt", "a list of at least one token, not a list"),
    ({"prompt": [[1, -3]]}, 400, None, "the prompt has token -3, but the model knows 0 … 9"),
    ({"prompt": [77]}, 400, None, "the prompt has token 77, but the model knows 0 … 9"),
    ({"max_tokens": -1, "echo": True}, 400, "max_tokens", "an integer of at least 0, not -1"),
    ({"max_tokens": True}, 400, "max_tokens", "an integer of at least 0, not True"),
    ({"max_tokens": 0, "echo": True, "prompt": "a" * 41}, 400, None, "shorten it"),
    ({"max_tokens": 0, "echo": True, "prompt": [10]}, 400, None, "the model knows 0 … 9"),
    ({"user": 7}, 400, "user", "user is a text, not a number"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", '"stream": true'),
    ({"stream_options": {}, "stream": False}, 400, "stream_options", '"stream": true'),
    ({"stream_options": {"includeUsage": True}, "stream": True}, 400, "stream_options",
     '{"include_usage": true or false}'),
    ({"stream_options": {"include_usage": 1}, "stream": True}, 400, "stream_options",
     '{"include_usage": true or false}'),
    ({"stream_options": [], "stream": True}, 400, "stream_options", "not []"),
    ({"max_tokens": 0}, 400, "max_tokens", "an integer of at least 1, not 0"),
    ({"max_tokens": 90}, 400, None, "lower max_tokens to 39"),
    ({"n": 500}, 400, "n", "at most 128"),
    ({"temperature": "hot"}, 400, "temperature", "temperature is a number, not 'hot'"),
    ({"temperature": -1}, 400, "temperature", "must be at least 0"),
    ({"top_p": 2}, 400, "top_p", "must be in (0, 1]"),
    ({"stop": [""]}, 400, "stop", "none of them empty"),
    ({"stream": 1}, 400, "stream", "true or false, not 1"),
    ({"logprobs": 50}, 400, "logprobs", "at most 20"),
    ({"best_of": 2}, 400, "best_of", "unknown option 'best_of'"),
    ({"seed": 2**70}, 400, "seed", "seed must be 0, or 1e-100 to 2^64 in size"),
    ({"temperature": 10**400}, 400, "temperature", "1e-100 to 2^64 in size, not 1000"),
    ({"temperature": 5e-324}, 400, "temperature", "1e-100 to 2^64 in size, not 5e-324"),
    ({"presence_penalty": 1e308}, 400, "presence_penalty", "1e-100 to 2^64 in size, not 1e+308"),
    ({"model": "gpt-5"}, 404, "model", "ask for 'tiny'"),
])
def test_a_mistake_gets_its_status_and_a_sentence(server, body, status, param, message):
    response = complete(server, **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert message in error["message"]


def test_what_is_no_request_is_refused(server):
    assert server.post("/v1/completions", content="{").status_code == 400
    assert server.post("/v1/completions", content="[]").status_code == 400
    assert server.post("/v1/completions", content=b"x" * (5 << 20)).status_code == 413
    nested = server.post("/v1/completions", content="[" * 100_000)
    assert server.post("/v1/completions", content=r'{"\ud800": 1}').json()["error"]["param"] == "?"
    assert nested.status_code == 400 and "recursion" in nested.json()["error"]["message"]
    assert server.get("/v1/completions").status_code == 405
    assert server.get("/v2").status_code == 404
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/v1/models").json()["data"][0]["id"] == "tiny"


def test_a_request_that_never_fits_is_refused_when_it_comes():
    text, engine = make(num_blocks=3)
    with TestClient(make_app(text, engine)) as client:
        response = complete(client, prompt="a", max_tokens=30)
        assert response.status_code == 400
        message = response.json()["error"]["message"]
        assert "needs 8 blocks of 4 tokens, and the pool has 3" in message
        # of several prompts none runs if one is refused
        assert complete(client, prompt=["a", "b" * 20], max_tokens=5).status_code == 400
        assert not engine.generations


def test_a_model_that_fails_is_reported_and_the_server_lives(server):
    run, server.engine.runner.run = server.engine.runner.run, lambda work: 1 / 0
    response = complete(server, prompt="a")
    assert response.status_code == 500
    assert "division by zero" in response.json()["error"]["message"]
    server.engine.runner.run = run
    assert complete(server, prompt="a").status_code == 200


def test_figures_are_served(server):
    complete(server, prompt="abc", max_tokens=6)
    figures = server.get("/metrics").json()
    assert figures["num_requests"] == 1 and figures["tokens_computed"] == 8
    assert figures["prefix_hit_rate"] is None and figures["blocks_used"] == 0
