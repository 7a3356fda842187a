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

from ..inference.engine import Answer, Generation
from .detokenizer import Detokenizer
from .protocol import BadRequest, CompletionRequest, CompletionWriter
from .service import Service
from .text_model import TextModel, text_of


async def stream_events(service: Service, texts: "AnswerTexts", writer: CompletionWriter,
                        generations: Sequence[Generation],
                        include_usage: bool) -> AsyncIterator[str]:
    """Yield an event for each step with new text or an ended answer, then "[DONE]".

    If the model fails, an event with the error is the last one.
    """
    async with service.cancelling(generations):
        try:
            async for _ in service.steps(generations):
                choices = [writer.choice(i, new, answer, tokens, answer.finish_reason)
                           for i, answer, new, tokens in texts.news()]
                if choices:
                    yield event(writer.body(choices))
        except RuntimeError as error:
            yield event(BadRequest(str(error), status=500).body())
            return
    if include_usage:
        yield event(writer.body([], writer.usage(texts.answers)))
    yield "data: [DONE]\n\n"


def event(body: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


class AnswerTexts:
    """The texts of all answers to one request; every answer to the first prompt comes first."""

    def __init__(self, text: TextModel, asked: CompletionRequest,
                 generations: Sequence[Generation]):
        self.answers = [answer for generation in generations for answer in generation.answers]
        self._detokenizers = [Detokenizer(text.tokenizer, asked.stops, asked.ends)
                              for _ in self.answers]
        self._seen = [0] * len(self.answers)
        self._heads = ["" if not asked.echo else text_of(text.tokenizer, prompt)
                       for prompt in asked.prompts for _ in range(asked.n)]
        self._is_over = [False] * len(self.answers)

    def news(self) -> list[tuple[int, Answer, str, slice]]:
        """For each answer with news: its index, the answer, new text, the slice of new tokens."""
        found = []
        for i, (answer, detokenizer) in enumerate(zip(self.answers, self._detokenizers)):
            is_last = answer.finish_reason is not None
            new = detokenizer.update(answer.tokens, is_last)
            if self._is_over[i] or not (new or is_last):
                continue
            tokens = slice(self._seen[i], len(answer.tokens))
            head, self._heads[i] = self._heads[i], ""
            self._seen[i], self._is_over[i] = len(answer.tokens), is_last
            found.append((i, answer, head + new, tokens))
        return found
