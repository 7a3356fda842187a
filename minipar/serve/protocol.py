"""OpenAI's completions: check what a client asks for.  `writer.py` writes the answers.

    POST /v1/completions   {"model": "gpt", "prompt": "def ", "max_tokens": 20, "stream": true}

`prompt` is a text, a list of texts, a list of tokens, or a list of lists of tokens.  As in vLLM,
every field of SamplingParams is an option under its own name, even if OpenAI has no such option.
With `ignore_eos` an answer goes on after the model's end tokens.  Source:
platform.openai.com/docs/api-reference/completions.
"""

import math
import secrets
from dataclasses import dataclass, fields, replace
from types import NoneType
from typing import Any, NamedTuple

from ..inference import SamplingParams
from .text_model import TextModel

SAMPLING = {field.name: field.type for field in fields(SamplingParams)}
OTHERS = {"model", "prompt", "max_tokens", "n", "stop", "stream", "stream_options", "logprobs",
          "echo", "user", "ignore_eos"}
MOST_ANSWERS, MOST_STOPS, MOST_LOGPROBS = 128, 4, 20


class BadRequest(ValueError):
    """A request that is refused with a status and a sentence; `param` is the option at fault."""

    def __init__(self, message: str, param: str | None = None, status: int = 400,
                 code: str | None = None):
        super().__init__(message)
        self.param, self.status, self.code = param, status, code

    def body(self) -> dict[str, Any]:
        """The answer, in OpenAI's form."""
        return {"error": {"message": str(self), "type": "invalid_request_error",
                          "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class CompletionRequest:
    """A checked request: each prompt (tokens) gets `n` answers, drawn by its own `params`."""

    prompts: list[list[int]]
    max_tokens: int                 # 0: only echo the prompts
    params: list[SamplingParams]
    n: int
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    logprobs: int | None
    echo: bool
    ends: tuple[int, ...]               # tokens that end an answer


def read_completion(body: Any, text: TextModel) -> CompletionRequest:
    """The request that a client sent as JSON.  Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest(f"the body is a JSON object, not {kind_of(body)}")
    unknown = sorted(body.keys() - SAMPLING.keys() - OTHERS)
    if unknown:
        raise BadRequest(f"unknown option {unknown[0]!r}: this server knows "
                         f"{', '.join(sorted([*SAMPLING, *OTHERS]))}", encodable(unknown[0]))
    if body.get("model") not in (None, text.name):
        raise BadRequest(f"there is no model {body['model']!r} here: ask for {text.name!r}",
                         "model", 404, "model_not_found")
    given = {name: value for name, value in body.items() if value is not None}
    options = RequestOptions(given)
    prompts = _read_prompts(given.get("prompt", "\n"), text)
    n = options.integer("n", 1, 1)
    if n * len(prompts) > MOST_ANSWERS:
        raise BadRequest(f"{n * len(prompts)} answers are asked for: at most {MOST_ANSWERS}", "n")
    logprobs = options.integer("logprobs", None, 0)
    if logprobs is not None and logprobs > MOST_LOGPROBS:
        raise BadRequest(f"logprobs is at most {MOST_LOGPROBS}, not {logprobs}", "logprobs")
    stream, echo = options.flag("stream"), options.flag("echo")
    max_tokens = options.integer("max_tokens", 16, 0)
    if not (max_tokens or echo):
        raise BadRequest("max_tokens is an integer of at least 1, not 0: only with echo it may be "
                         "0, to score a prompt", "max_tokens")
    if not isinstance(given.get("user", ""), str):
        raise BadRequest(f"user is a text, not {kind_of(given['user'])}", "user")
    return CompletionRequest(
        prompts, max_tokens, _read_sampling(options, len(prompts)), n,
        _read_stops(given.get("stop", [])), stream, _read_include_usage(given, stream), logprobs,
        echo, () if options.flag("ignore_eos") else text.tokenizer.markers.ends)


class RequestOptions(NamedTuple):
    """The options that a client gave, each checked as it is read."""

    given: dict[str, Any]

    def integer(self, name: str, default: Any, least: int | None = None) -> Any:
        """An integer of at least `least`; None if neither it nor a default is given."""
        value = self.given.get(name, default)
        if value is None:
            return None
        if type(value) is not int or least is not None and value < least:
            at_least = "" if least is None else f" of at least {least}"
            raise BadRequest(f"{name} is an integer{at_least}, not {value!r}", name)
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number."""
        value = self.given.get(name, default)
        if type(value) not in (int, float) or not abs(value) < math.inf:
            raise BadRequest(f"{name} is a number, not {value!r}", name)
        return value

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self.given.get(name, False)
        if type(value) is not bool:
            raise BadRequest(f"{name} is true or false, not {value!r}", name)
        return value


def _read_include_usage(given: dict[str, Any], stream: bool) -> bool:
    """True if the client asked for a last chunk with the usage."""
    if "stream_options" not in given:
        return False
    stream_options = given["stream_options"]
    if not isinstance(stream_options, dict) or stream_options.keys() - {"include_usage"} \
            or type(stream_options.get("include_usage")) not in (bool, NoneType):
        raise BadRequest('stream_options is {"include_usage": true or false}, not '
                         f"{stream_options!r}", "stream_options")
    if not stream:
        raise BadRequest('stream_options is for "stream": true: add that, or leave it out',
                         "stream_options")
    return bool(stream_options.get("include_usage"))


def _read_sampling(options: RequestOptions, num_prompts: int) -> list[SamplingParams]:
    """The rules by which the answers to each prompt are drawn.  Raises BadRequest."""
    values: dict[str, Any] = {}
    for name, kind in SAMPLING.items():
        default = getattr(SamplingParams, name)
        values[name] = (options.integer(name, default) if kind is int
                        else options.number(name, default))
    try:
        params = SamplingParams(**values)
    except ValueError as error:
        raise BadRequest(str(error), str(error).split()[0]) from error
    if "seed" in options.given:                 # as in vLLM: each prompt is answered as if alone
        return [params] * num_prompts
    return [replace(params, seed=secrets.randbits(64)) for _ in range(num_prompts)]


def _read_prompts(prompt: Any, text: TextModel) -> list[list[int]]:
    """Prompts as tokens.  Raises BadRequest."""
    if isinstance(prompt, str) or _are_tokens(prompt):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise BadRequest("prompt is a text, a list of texts, a list of tokens, or a list of lists "
                         "of tokens", "prompt")
    prompts = []
    for each in prompt:
        if not (isinstance(each, str) or _are_tokens(each)):
            raise BadRequest("a prompt is a text or a list of at least one token, not "
                             f"{kind_of(each)}", "prompt")
        try:
            prompts.append(text.encode(each) if isinstance(each, str) else each)
        except ValueError as error:
            raise BadRequest(str(error), "prompt") from error
    return prompts


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def _read_stops(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise BadRequest("stop is a text or a list of texts, none of them empty", "stop")
    if len(stops) > MOST_STOPS:
        raise BadRequest(f"stop has {len(stops)} texts: at most {MOST_STOPS}", "stop")
    return tuple(stops)


def kind_of(value: Any) -> str:
    """The kind of a JSON value, in words."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false",
             int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def encodable(text: str) -> str:
    """A text, with "?" for the half characters that JSON can name and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")
