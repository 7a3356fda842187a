"""Stream answers: server-sent events, one for each step with new text.

    data: {"choices": [{"index": 0, "text": "He", …}], …}      after a step
    data: {"choices": [{"index": 0, "text": "llo", …}], …}     after a later step
    data: {"choices": [], "usage": {…}}                        if the client asked for usage
    data: [DONE]

An empty line ends each event.  `AnswerTexts` turns the tokens of all answers into text
(`detokenizer.py`); `app.py` uses it for answers that are not streamed, too.
"""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from ..inference.engine import Generation, Sample
from .detokenizer import Detokenizer
from .protocol import BadRequest, CompletionRequest, CompletionWriter
from .service import Service
from .text_model import TextModel, text_of


async def stream_events(service: Service, texts: "AnswerTexts", answers: CompletionWriter,
                        generations: Sequence[Generation],
                        include_usage: bool) -> AsyncIterator[str]:
    """Yield an event for each step with new text or an ended answer, then "[DONE]".

    If the model fails, an event with the error is the last one.
    """
    async with service.cancelling(generations):
        try:
            async for _ in service.steps(generations):
                choices = [answers.choice(i, new, sample, tokens, sample.finish_reason)
                           for i, sample, new, tokens in texts.news()]
                if choices:
                    yield event(answers.body(choices))
        except RuntimeError as error:
            yield event(BadRequest(str(error), status=500).body())
            return
    if include_usage:
        yield event(answers.body([], answers.usage(texts.samples)))
    yield "data: [DONE]\n\n"


def event(body: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


class AnswerTexts:
    """The texts of all answers to one request; every answer to the first prompt comes first."""

    def __init__(self, text: TextModel, asked: CompletionRequest,
                 generations: Sequence[Generation]):
        self.samples = [sample for generation in generations for sample in generation.samples]
        self._detokenizers = [Detokenizer(text.tokenizer, asked.stops) for _ in self.samples]
        self._seen = [0] * len(self.samples)
        self._heads = ["" if not asked.echo else text_of(text.tokenizer, prompt)
                       for prompt in asked.prompts for _ in range(asked.n)]
        self._is_over = [False] * len(self.samples)

    def news(self) -> list[tuple[int, Sample, str, slice]]:
        """For each answer with news: its index, the sample, new text, the slice of new tokens."""
        found = []
        for i, (sample, detokenizer) in enumerate(zip(self.samples, self._detokenizers)):
            is_last = sample.finish_reason is not None
            new = detokenizer.update(sample.tokens, is_last)
            if self._is_over[i] or not (new or is_last):
                continue
            tokens = slice(self._seen[i], len(sample.tokens))
            head, self._heads[i] = self._heads[i], ""
            self._seen[i], self._is_over[i] = len(sample.tokens), is_last
            found.append((i, sample, head + new, tokens))
        return found
