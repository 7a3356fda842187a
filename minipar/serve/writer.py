"""Write answers in the form of OpenAI's completions: as a whole, or in chunks.

    {"id": …, "choices": [{"index": 0, "text": "abc", "logprobs": {…}, "finish_reason": null}], …}

With echo an answer begins with its prompt.  If log-probabilities were asked for, the prompt's
tokens have them as well.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..inference.engine import Answer
from .detokenizer import Detokenizer
from .protocol import CompletionRequest
from .service import Service
from .text_model import TextModel, text_of

LEAST_LOGPROB = -9999.0     # stands for -inf, which JSON does not know; as in vLLM


class NewText(NamedTuple):
    """New text of an answer, and the tokens that begin in it."""

    index: int                  # of the answer, among all answers to the request
    answer: Answer
    text: str
    tokens: slice
    places: list[int]           # of these tokens in the whole text of the answer


class CompletionWriter:
    """Writes the answers to one request."""

    def __init__(self, text: TextModel, request: CompletionRequest):
        self.text, self.request = text, request
        self.head = {"id": f"cmpl-{secrets.token_hex(12)}", "object": "text_completion",
                     "created": int(time.time()), "model": text.name}
        self._echoes = [text_of(text.tokenizer, prompt) if request.echo else ""
                        for prompt in request.prompts]
        self._echoed_logprobs: list[dict[str, list]] = []       # of each prompt
        self._begun: set[int] = set()                           # answers whose prompt was echoed

    async def score(self, service: Service) -> None:
        """Compute the prompts' log-probabilities, if they are to be echoed.

        Raises RuntimeError if the model fails.
        """
        if not self.request.echo or self.request.logprobs is None:
            return
        for prompt in self.request.prompts:
            scores = await service.score(self.text.model, prompt, self.request.logprobs)
            shown = Detokenizer(self.text.tokenizer)
            shown.update(prompt, True)
            logprobs, likeliest = zip((None, None), *scores)    # nothing comes before the first
            self._echoed_logprobs.append(
                self._logprobs(prompt, logprobs, likeliest, shown.places(prompt)))

    def choice(self, new: NewText) -> dict[str, Any]:
        """The entry of `choices` for new text; an answer's first one begins with the echo."""
        index, answer, text, tokens, places = new
        prompt_index, is_first = index // self.request.n, index not in self._begun
        self._begun.add(index)
        echo, logprobs = self._echoes[prompt_index], None
        if self.request.logprobs is not None:
            logprobs = self._logprobs(answer.tokens[tokens], answer.logprobs[tokens],
                                      answer.likeliest[tokens], [len(echo) + p for p in places])
            if is_first and self._echoed_logprobs:
                prompt = self._echoed_logprobs[prompt_index]
                logprobs = {name: prompt[name] + values for name, values in logprobs.items()}
        return {"index": index, "text": echo * is_first + text, "logprobs": logprobs,
                "finish_reason": answer.finish_reason}

    def _logprobs(self, tokens: Sequence[int], logprobs: Sequence[float | None],
                  likeliest: Sequence[dict[int, float] | None],
                  places: list[int]) -> dict[str, list]:
        """The log-probabilities of tokens in OpenAI's form; None where there is none."""
        return {"tokens": [text_of(self.text.tokenizer, [token]) for token in tokens],
                "token_logprobs": [None if logprob is None else max(logprob, LEAST_LOGPROB)
                                   for logprob in logprobs],
                "top_logprobs": [None if logprob is None or others is None
                                 else self._by_text({**others, token: logprob}, token)
                                 for token, logprob, others in zip(tokens, logprobs, likeliest)],
                "text_offset": places}

    def _by_text(self, logprobs: dict[int, float], drawn: int) -> dict[str, float]:
        """Log-probabilities by the text of the token.

        If several tokens have the same text, it stands for the drawn token, or for the likeliest of
        them if none was drawn.  The others get "token_id:" and their number.
        """
        owners = {text_of(self.text.tokenizer, [token]): token      # the last token of a text wins
                  for token in [*reversed(logprobs), drawn]}
        texts = {token: text for text, token in owners.items()}
        return {texts.get(token, f"token_id:{token}"): max(logprob, LEAST_LOGPROB)
                for token, logprob in logprobs.items()}

    def body(self, choices: Sequence[dict[str, Any]],
             usage: dict[str, int] | None = None) -> dict[str, Any]:
        """A response, or a chunk of one."""
        return {**self.head, "choices": list(choices), "usage": usage}

    def usage(self, answers: Sequence[Answer]) -> dict[str, int]:
        """The tokens of all prompts and answers."""
        prompt = sum(map(len, self.request.prompts))
        completion = sum(len(answer.tokens) for answer in answers)
        return {"prompt_tokens": prompt, "completion_tokens": completion,
                "total_tokens": prompt + completion}
