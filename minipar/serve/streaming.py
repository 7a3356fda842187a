"""Stream answers: server-sent events, one for each step with new text or an ended answer.

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
from .protocol import BadRequest, CompletionRequest
from .service import Service
from .text_model import TextModel
from .writer import CompletionWriter, NewText


async def stream_events(service: Service, texts: "AnswerTexts", writer: CompletionWriter,
                        generations: Sequence[Generation],
                        include_usage: bool) -> AsyncIterator[str]:
    """Yield an event for each step with new text or an ended answer, then "[DONE]".

    If the model fails, an event with the error is the last one.
    """
    async with service.cancelling(generations):
        try:
            await writer.score(service)
            async for _ in service.steps(generations):
                if choices := [writer.choice(new) for new in texts.news()]:
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
    """The texts of all answers to one request, in the order of its prompts."""

    def __init__(self, text: TextModel, asked: CompletionRequest,
                 generations: Sequence[Generation]):
        self.answers = [answer for generation in generations for answer in generation.answers]
        if not asked.max_tokens:                # nothing is generated
            self.answers = [Answer(finish_reason="length") for _ in asked.prompts * asked.n]
        self._detokenizers = [Detokenizer(text.tokenizer, asked.stops, asked.ends)
                              for _ in self.answers]
        self._seen = [0] * len(self.answers)
        self._is_over = [False] * len(self.answers)
        self._with_places = asked.logprobs is not None

    def news(self) -> list[NewText]:
        """The new text of each answer that has some, or that has ended since the last call."""
        found = []
        for i, (answer, detokenizer) in enumerate(zip(self.answers, self._detokenizers)):
            is_last = answer.finish_reason is not None
            new = detokenizer.update(answer.tokens, is_last)
            if self._is_over[i] or not (new or is_last):
                continue
            self._is_over[i] = is_last
            places = self._new_places(i) if self._with_places else []
            first, self._seen[i] = self._seen[i], self._seen[i] + len(places)
            found.append(NewText(i, answer, new, slice(first, self._seen[i]), places))
        return found

    def _new_places(self, i: int) -> list[int]:
        """The places of an answer's new tokens, without those whose text is not shown yet."""
        answer, detokenizer = self.answers[i], self._detokenizers[i]
        places = detokenizer.places(answer.tokens, self._seen[i])
        return places if self._is_over[i] else [place for place in places
                                                if place < len(detokenizer.shown)]
