"""The engine: requests in, tokens out, one step of the model after the other.

    submit ─▶ scheduler ─▶ ScheduledStep ─▶ runner: cache and model ─▶ tokens ─▶ Generation
                 ▲                                                       │
                 └─────────────────── finish: append, or end ◀───────────┘

One step, in this order:

    begin_step    scheduler.schedule    choose requests and tokens; admit, preempt, take blocks
                  scheduler.advance     find the sequences that draw a token
    runner.run    cache.apply           move blocks: swap out, swap in, copy
                  forward, draw         the model over new tokens; a token for each draw
    end_step      Generation.append     append the token; see whether the answer has ended
                  scheduler.finish      append tokens to sequences; free blocks of ended ones

The objects of one prompt with n answers:

    Generation ─▶ Answer × n                                the answers, for the user
        └─▶ Request ─▶ CachedSequence × n ─▶ block table    the tokens in the cache

    engine = Engine(ModelRunner(model, num_blocks=64, block_size=16), SchedulerConfig(64, 16))
    generation = engine.submit([1, 2, 3], max_tokens=20)
    for token in engine.stream(generation):
        …

Other requests change the logits of this one by rounding alone (sampling/sampler.py), except with
the 8-bit cache.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from .cache import SequenceInput
from .engine_metrics import EngineMetrics
from .model_runner import Draw, NewToken, Runner, StepWork
from .sampling import DrawInputs, SamplingParams
from .scheduling import (
    CachedSequence,
    Request,
    RequestTooLarge,
    ScheduledStep,
    Scheduler,
    SchedulerConfig,
)

IsStop = Callable[[list[int]], bool]


@dataclass
class Answer:
    """One answer to a prompt: its tokens so far, and why it ended: "length" or "stop"."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    likeliest: list[dict[int, float]] = field(default_factory=list)
    finish_reason: str | None = None

    def append(self, new: NewToken) -> None:
        """Append a token, and its log-probabilities if they were asked for."""
        self.tokens.append(new.token)
        if new.logprob is not None and new.likeliest is not None:
            self.logprobs.append(new.logprob)
            self.likeliest.append(new.likeliest)


@dataclass
class Generation:
    """A submitted request and its `answers`, which grow step by step."""

    request: Request
    params: SamplingParams
    stop_tokens: frozenset[int]
    is_stop: IsStop | None
    num_logprobs: int | None
    submitted: float                    # seconds of the engine's clock
    answers: list[Answer]
    token_times: list[float] = field(default_factory=list)      # of the first answer
    was_cancelled: bool = False

    def append(self, answer_index: int, new: NewToken, now: float) -> str | None:
        """Append a token to an answer; return the reason if the answer has ended, else None."""
        answer = self.answers[answer_index]
        answer.append(new)
        if answer_index == 0:
            self.token_times.append(now)
        if new.token in self.stop_tokens or self.is_stop and self.is_stop(answer.tokens):
            answer.finish_reason = "stop"
        elif len(answer.tokens) == self.request.max_tokens:
            answer.finish_reason = "length"
        return answer.finish_reason

    @property
    def is_done(self) -> bool:
        """True if all answers have ended, or the request was cancelled."""
        return self.was_cancelled or all(answer.finish_reason for answer in self.answers)


class Engine:
    """Runs requests together, step by step.

    `clock` gives seconds, for the metrics.  An engine must not be used by several threads at once.
    """

    def __init__(self, runner: Runner, config: SchedulerConfig,
                 clock: Callable[[], float] = time.perf_counter):
        self.runner, self.config, self.clock = runner, config, clock
        self.scheduler = Scheduler(config)
        self.metrics = EngineMetrics(runner.bytes_per_block)
        self.engines = [self]               # a pipeline's engine has several
        self.generations: dict[str, Generation] = {}        # those that are not done, by name
        self._num_submitted = 0
        self._step: ScheduledStep
        self._drawing: list[tuple[Request, CachedSequence]] = []

    def submit(self, prompt: Collection[int], max_tokens: int,
               params: SamplingParams | None = None, num_answers: int = 1,
               stop_tokens: Collection[int] = (), is_stop: IsStop | None = None,
               num_logprobs: int | None = None) -> Generation:
        """Add a request; it runs in the next steps.

        An answer ends after `max_tokens` tokens, with a token of `stop_tokens`, or when
        `is_stop(tokens)` is true.  Raises RequestTooLarge if the request can never run, and
        ValueError for a prompt that is empty or has unknown tokens.
        """
        request = self.check(prompt, max_tokens, num_answers)
        self.scheduler.add(request)
        self._num_submitted += 1
        generation = Generation(
            request, params or SamplingParams(), frozenset(stop_tokens), is_stop, num_logprobs,
            self.clock(), [Answer() for _ in range(num_answers)])
        self.generations[request.name] = generation
        return generation

    def check(self, prompt: Collection[int], max_tokens: int, num_answers: int = 1) -> Request:
        """The request of a prompt.  Raises what `submit` raises, but submits nothing."""
        prompt = [int(token) for token in prompt]
        self.check_prompt(prompt, max_tokens)
        request = Request(f"r{self._num_submitted}", prompt, max_tokens, num_answers)
        self.scheduler.check(request)
        return request

    def check_prompt(self, prompt: list[int], max_tokens: int) -> None:
        """Raise ValueError if the model does not know a token, or has no room for all tokens."""
        vocab_size, context = self.runner.vocab_size, self.runner.context
        unknown = [token for token in prompt if not 0 <= token < vocab_size]
        if unknown:
            raise ValueError(f"the prompt has token {unknown[0]}, but the model knows 0 … "
                             f"{vocab_size - 1}: use the model's own tokenizer")
        if len(prompt) + max_tokens > context:
            raise RequestTooLarge(
                f"a prompt of {len(prompt)} tokens and max_tokens={max_tokens} are more than the "
                f"model's context of {context}: lower max_tokens to {context - len(prompt)}"
                if len(prompt) < context else
                f"a prompt of {len(prompt)} tokens leaves no room in the model's context of "
                f"{context}: shorten it")

    @property
    def has_requests(self) -> bool:
        """True if any request is left to run."""
        return self.scheduler.has_requests

    def step(self) -> None:
        """Run one step, if any request is left to run.

        If the model fails, cancel all requests, free their blocks, and raise its error.
        """
        if not self.scheduler.has_requests:
            return
        work = self.begin_step()
        try:
            tokens = self.runner.run(work)
        except BaseException:
            self.cancel_all()
            self.scheduler.forget_cached()      # these blocks may never have been filled
            raise
        self.end_step(tokens)

    def begin_step(self) -> StepWork:
        """Schedule the next step; return its work.  `end_step` takes the tokens that result."""
        step = self.scheduler.schedule()
        inputs, index_of = sequence_inputs(step)    # before `advance` forks: forks compute nothing
        self._drawing = self.scheduler.advance(step)
        self._step = step
        draws = [self._draw(request, sequence, index_of) for request, sequence in self._drawing]
        return StepWork(inputs, draws, step.swapped_out, step.swapped_in, step.copied)

    def _draw(self, request: Request, sequence: CachedSequence,
              index_of: dict[CachedSequence, int]) -> Draw:
        generation = self.generations[request.name]
        # answers that forked in this step draw from the logits of the prompt
        index = index_of[sequence if sequence in index_of else request.sequences[0]]
        inputs = DrawInputs(generation.params, request.prompt, request.outputs(sequence),
                            sequence.answer_index)
        return Draw(index, inputs, generation.num_logprobs)

    def end_step(self, tokens: list[NewToken]) -> None:
        """Append the token of each sequence that drew one, and finish those that have ended."""
        step, drawing = self._step, self._drawing
        now, stopped = self.clock(), []
        for (request, sequence), new in zip(drawing, tokens):
            generation = self.generations[request.name]
            if generation.append(sequence.answer_index, new, now) == "stop":
                stopped.append(sequence)
        drawn = {sequence: new.token for (_, sequence), new in zip(drawing, tokens)}
        self.scheduler.finish(step, drawn, stopped)
        self.metrics.record_step(step, step.slots // self.config.block_size)
        for request in step.finished:
            generation = self.generations.pop(request.name)
            self.metrics.record_request(request.name, generation.submitted, generation.token_times)

    def stream(self, generation: Generation) -> Iterator[int]:
        """Run steps, and yield the tokens of a generation's first answer as they come."""
        num_seen = 0
        while True:
            was_done = generation.is_done
            new = generation.answers[0].tokens[num_seen:]
            num_seen += len(new)
            yield from new                      # meanwhile others may run steps
            if was_done:
                return
            if not new:
                self.step()

    def run(self) -> None:
        """Run steps until no request is left."""
        while self.has_requests:
            self.step()

    def cancel(self, generation: Generation) -> None:
        """Forget a request, in whatever state; its blocks are free at once."""
        if not generation.is_done:
            generation.was_cancelled = True
            self.scheduler.cancel(generation.request)
            self.metrics.forget(generation.request.name)
            del self.generations[generation.request.name]

    def cancel_all(self) -> None:
        """Cancel every request."""
        for generation in list(self.generations.values()):
            self.cancel(generation)


def sequence_inputs(step: ScheduledStep) -> tuple[list[SequenceInput], dict[CachedSequence, int]]:
    """(what each sequence of a step computes, each sequence's index in this list)."""
    inputs: list[SequenceInput] = []
    index_of: dict[CachedSequence, int] = {}
    for request, start, num_tokens, _ in step.scheduled:
        for sequence in request.sequences:
            index_of[sequence] = len(inputs)
            inputs.append(SequenceInput(sequence.tokens[start:start + num_tokens], start,
                                        list(sequence.table)))
    return inputs, index_of
