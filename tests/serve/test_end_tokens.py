"""The server ends an answer with the model's end token, and does not show it."""

import json

import pytest

from minipar.data import ByteBPE, Markers, Numbers
from minipar.data.byte_bpe import BYTES
from minipar.inference import Engine, ModelRunner, SchedulerConfig
from minipar.nn import GPT, GPTConfig
from minipar.serve.text_model import TextModel
from tests.support.scripted_model import scripted_state

testclient = pytest.importorskip("starlette.testclient")
app = pytest.importorskip("minipar.serve.app")

ENDS = Markers(end=(3,), more_ends=(257,))
KINDS = {"numbers": (Numbers(258, ENDS), [4, 2, 257], [[1], [5]], "4 2 ", "4 2 257 257 "),
         "byte_bpe": (ByteBPE([*BYTES, "<pad>", "</s>"], [], None, ["<pad>", "</s>"], ENDS),
                      [111, 107, 257], ["1", "5"], "ok", "ok</s></s>")}


@pytest.fixture(params=KINDS)
def served(request):
    """A client of a model that ends after two tokens; two prompts; its answers."""
    vocabulary, says, prompts, ended, endless = KINDS[request.param]
    model = GPT(GPTConfig(258, 8, 1, 2, 8)).initialize(0)
    model.load_state_dict(scripted_state(model, says))
    engine = Engine(ModelRunner(model, 9, 4), SchedulerConfig(9, 4))
    with testclient.TestClient(app.make_app(TextModel("m", model, vocabulary), engine)) as client:
        yield client, prompts, ended, endless


def ask(client, prompts, **more):
    asked = {"prompt": prompts, "max_tokens": 4, "temperature": 0, **more}
    return client.post("/v1/completions", json=asked)


def test_an_answer_ends_where_the_model_draws_the_end(served):
    client, prompts, ended, endless = served
    body = ask(client, prompts).json()
    assert [(c["text"], c["finish_reason"]) for c in body["choices"]] == [(ended, "stop")] * 2
    assert body["usage"]["completion_tokens"] == 6          # with the end tokens
    body = ask(client, prompts, ignore_eos=True).json()
    assert [(c["text"], c["finish_reason"]) for c in body["choices"]] == [(endless, "length")] * 2
    assert "ignore_eos is true or false" in ask(client, prompts, ignore_eos=1).text


def test_a_stream_ends_too(served):
    client, prompts, ended, _ = served
    events = [line[6:] for line in ask(client, prompts[0], stream=True).text.split("\n")
              if line.startswith("data: ")]
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert "".join(choice["text"] for choice in choices) == ended and events[-1] == "[DONE]"
    assert [choice["finish_reason"] for choice in choices][-1] == "stop"
