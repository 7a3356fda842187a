"""Scripted requests, played through scheduler and block pool without any model.

    {"engine": {"num_blocks": 8, "block_size": 4},
     "requests": [{"name": "A", "arrival_step": 0, "prompt": [1, 2, 3], "outputs": [[7, 8]]}]}

`engine` holds the values of SchedulerConfig.  `outputs` has, for each answer of a request, the
tokens that a model would have drawn.  `play` returns a record of every step, and a summary;
`minipar replay FILE.json` prints both.  Steps in which no request is left to run are not listed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from .block_table import CachedSequence
from .request import Request
from .scheduler import Scheduler
from .scheduler_config import RequestTooLarge, SchedulerConfig
from .step import ScheduledStep

MOST = 2**20        # most blocks, and tokens of a block: each block is an entry of several lists
ALWAYS = ("step", "scheduled", "slots", "filled", "tables", "free_after")


@dataclass(frozen=True)
class ScriptedRequest:
    """A request that comes at a step, with the tokens that each of its answers will draw."""

    name: str
    arrival_step: int
    prompt: list[int]
    outputs: list[list[int]]

    @property
    def names(self) -> list[str]:
        """The request's name, and its answers' names if there are several."""
        num_answers = len(self.outputs)
        return [self.name, *(f"{self.name}.{i}" for i in range(num_answers) if num_answers > 1)]

    def request(self) -> Request:
        """A fresh request."""
        lengths = [len(output) for output in self.outputs]
        return Request(self.name, self.prompt, max(lengths), len(lengths), lengths=lengths)


@dataclass(frozen=True)
class Scenario:
    """The sizes and rules of a scheduler, and its requests in the order in which they come."""

    config: SchedulerConfig
    requests: list[ScriptedRequest]


def read_scenario(document: Any) -> Scenario:
    """The scenario of a JSON document.  Raises ValueError, which says what is wrong where."""
    if not isinstance(document, dict) or not {"engine", "requests"} <= document.keys():
        raise ValueError('expected {"engine": {…}, "requests": […]}')
    engine = document["engine"]
    known = [each.name for each in fields(SchedulerConfig)]
    if not isinstance(engine, dict) or "num_blocks" not in engine or engine.keys() - set(known):
        raise ValueError(f'"engine" needs "num_blocks", and knows {", ".join(known)}: it is '
                         f"{engine!r}")
    for key, value in engine.items():
        check_engine_value(key, value)
    if not isinstance(document["requests"], list):
        raise ValueError(f'"requests" is a list, not {document["requests"]!r}')
    requests = [_read_request(entry) for entry in document["requests"]]
    names = [name for request in requests for name in request.names]
    if len(set(names)) < len(names):
        raise ValueError("two requests, or answers of them, have the same name: "
                         f"{', '.join(names)}")
    return Scenario(SchedulerConfig(**engine), requests)


def check_engine_value(key: str, value: Any) -> None:
    """Raise ValueError if a value of SchedulerConfig has a wrong type, or is huge."""
    kind, words = {"prefix_caching": (bool, "true or false"), "policy": (str, "a name"),
                   "preempt_by": (str, "a name")}.get(key, (int, "an integer"))
    may_be_none = key in ("token_budget", "max_requests")
    if not (may_be_none and value is None) and type(value) is not kind:
        raise ValueError(f'"{key}" is {words}{" or null" * may_be_none}, not {value!r}')
    if key in ("num_blocks", "block_size") and type(value) is int and value > MOST:
        raise ValueError(f'"{key}" is at most {MOST}, not {value}')


def _read_request(entry: Any) -> ScriptedRequest:
    expected = {"name", "arrival_step", "prompt", "outputs"}
    if not isinstance(entry, dict) or entry.keys() != expected:
        raise ValueError(f"a request has {', '.join(sorted(expected))}: not {entry!r}")
    request = ScriptedRequest(**entry)
    is_valid = (isinstance(request.name, str) and type(request.arrival_step) is int
                and request.arrival_step >= 0 and _are_tokens(request.prompt)
                and isinstance(request.outputs, list) and request.outputs
                and all(map(_are_tokens, request.outputs)))
    if not is_valid:
        raise ValueError(f"request {request.name!r}: expected a name, arrival_step >= 0, a prompt "
                         "[token, …] and outputs [[token, …], …], tokens being integers of 64 "
                         "bits, at least one each")
    return request


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(
        type(token) is int and -2**63 <= token < 2**63 for token in value)


class Replay:
    """A scenario while it is played: the steps so far, and what was refused."""

    def __init__(self, scenario: Scenario):
        self.scheduler = Scheduler(scenario.config)
        self.scripts = {script.name: script for script in scenario.requests}
        self.coming = sorted(scenario.requests, key=lambda script: script.arrival_step)
        self.steps: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        self.first_token: dict[str, int] = {}
        self.last_token: dict[str, int] = {}

    def run(self) -> None:
        """Play until no request is left."""
        now = 0
        while self.coming or self.scheduler.has_requests:
            if not self.scheduler.has_requests:
                now = max(now, self.coming[0].arrival_step)
            while self.coming and self.coming[0].arrival_step <= now:
                self._add(self.coming.pop(0))
            if self.scheduler.has_requests:
                self._play_step(now)
                now += 1

    def _add(self, script: ScriptedRequest) -> None:
        try:
            self.scheduler.add(script.request())
        except RequestTooLarge as error:
            self.refused.append({"refused": script.name, **error.figures})

    def _play_step(self, now: int) -> None:
        step = self.scheduler.schedule()
        step.index = now
        tokens = {}
        for request, sequence in self.scheduler.advance(step):
            tokens[sequence] = self._next_token(request, sequence)
            self.first_token.setdefault(request.name, now)
            self.last_token[request.name] = now
        self.scheduler.finish(step, tokens)
        self.steps.append(as_record(step))

    def _next_token(self, request: Request, sequence: CachedSequence) -> int:
        """The scripted token of a sequence."""
        output = self.scripts[request.name].outputs[sequence.answer_index]
        return output[len(request.outputs(sequence))]

    def summary(self) -> dict[str, Any]:
        """Totals of all steps."""
        pool = self.scheduler.pool
        slots, filled = (sum(step[key] for step in self.steps) for key in ("slots", "filled"))
        return {
            "steps": len(self.steps),
            "tokens_computed": sum(tokens * sequences for step in self.steps
                                   for _, _, tokens, sequences in step["scheduled"]),
            "blocks_allocated": pool.num_allocated, "blocks_evicted": pool.num_evicted,
            "blocks_copied": pool.num_copied,
            "blocks_swapped_out": sum(len(step.get("swapped_out", ())) for step in self.steps),
            "preemptions": sum(len(step.get("preempted", ())) for step in self.steps),
            "prefix_tokens_queried": self.scheduler.tokens_queried,
            "prefix_tokens_hit": self.scheduler.tokens_hit,
            "peak_blocks": max((step["slots"] // pool.block_size for step in self.steps),
                               default=0),
            "waste_mean": 1 - filled / slots if slots else 0.0,
            "first_token_step": self.first_token, "last_token_step": self.last_token,
            "free_queue_at_end": list(pool.free)}


def as_record(step: ScheduledStep) -> dict[str, Any]:
    """A step as JSON, without lists that are empty, except those of ALWAYS."""
    record = {
        "step": step.index,
        "admitted": [request.name for request in step.admitted],
        "hits": [list(hit) for hit in step.hits],
        "scheduled": [[each.request.name, each.start, each.num_tokens, each.num_sequences]
                      for each in step.scheduled],
        "allocated": [list(pair) for pair in step.allocated],
        "preempted": [request.name for request in step.preempted],
        "swapped_out": [list(pair) for pair in step.swapped_out],
        "swapped_in": [list(pair) for pair in step.swapped_in],
        "copied": [list(pair) for pair in step.copied],
        "freed": step.freed,
        "finished": [request.name for request in step.finished],
        "slots": step.slots, "filled": step.filled, "tables": step.tables,
        "free_after": step.num_free}
    return {key: value for key, value in record.items() if value or key in ALWAYS}


def play(scenario: Scenario) -> dict[str, Any]:
    """Play a scenario: {"refused": […] if any, "steps": […], "summary": {…}}."""
    replay = Replay(scenario)
    replay.run()
    refused: Mapping[str, Any] = {"refused": replay.refused} if replay.refused else {}
    return {**refused, "steps": replay.steps, "summary": replay.summary()}
