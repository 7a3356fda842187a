"""`minipar serve` as the `openai` client sees it."""

import pytest

from tests.serve.test_server import Server, checkpoint  # noqa: F401  (a fixture)

openai = pytest.importorskip("openai")


@pytest.fixture
def client(checkpoint):  # noqa: F811
    server = Server(checkpoint)
    yield openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
    server.process.kill()
    server.process.wait()


def test_answers_streams_and_errors(client):
    (model,) = [each.id for each in client.models.list()]
    asked = {"model": model, "prompt": "abc", "max_tokens": 12, "seed": 3}
    whole = client.completions.create(**asked, logprobs=2, n=2)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert whole.usage.completion_tokens == 24
    assert len(whole.choices[0].logprobs.token_logprobs) == 12
    text = ""
    for chunk in client.completions.create(**asked, stream=True,
                                           stream_options={"include_usage": True}):
        text += "".join(choice.text for choice in chunk.choices)
    assert text == whole.choices[0].text and chunk.usage.total_tokens == 15
    with pytest.raises(openai.BadRequestError, match="lower max_tokens to 1997"):
        client.completions.create(**{**asked, "max_tokens": 5000})
    with pytest.raises(openai.NotFoundError, match="ask for"):
        client.completions.create(**{**asked, "model": "other"})
