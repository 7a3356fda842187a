"""Lesson 30: the library's engine in virtual time: load, budgets, preemption, speculation.

A step of T tokens reads all weights once, and computes 2 FLOPs a weight and token.  It takes the
longer of both (Williams et al. 2009, the roofline).  Up to 100 tokens cost as much as one.
`make bench BENCH=serve` does so with the sizes of a model; here numbers are round.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minipar.inference import Engine, Generation, SchedulerConfig
from minipar.inference.arrivals import Arrival, poisson_arrivals
from minipar.inference.engine_metrics import EngineMetrics, Summary
from minipar.inference.model_runner import NewToken, StepWork
from minipar.inference.scheduling import ScheduledStep
from minipar.inference.scheduling.scripted_requests import (
    Scenario,
    ScriptedRequest,
    as_record,
    play,
)
from minipar.viz import draw_request_timeline

from .cached_runs import VOCABULARY, answers, differing, small_gpt, speculate
from .kit import ABOUT, Lesson, Row

LENGTHS = {"A": (5, 2), "B": (3, 9), "C": (6, 3), "D": (2, 4), "E": (4, 6), "F": (7, 2)}
AT_ONCE = 3                             # requests that run together
LONG, OTHERS, COMES = 600, 4, 0.105     # a long prompt, requests beside it, seconds when it comes
READ, COMPUTE = 10e-3, 0.1e-3           # seconds: all weights once; one token


def step_seconds(num_tokens: int) -> float:
    """The seconds of a step."""
    return max(READ, num_tokens * COMPUTE)


class Served(NamedTuple):
    """The answers to all requests, and each step: (begin, end, record of the step)."""

    generations: list[Generation]
    steps: list[tuple[float, float, dict[str, Any]]]
    summary: Summary


class TimedRunner:
    """In place of a model: its clock advances, and every token is 0."""

    context, vocab_size, bytes_per_block = 4096, 1, 1

    def __init__(self):
        self.now = self.began = 0.0

    def run(self, work: StepWork) -> list[NewToken]:
        """Advance the clock; return a token 0 for each draw."""
        self.began = self.now
        self.now += step_seconds(sum(len(each.tokens) for each in work.inputs))
        return [NewToken(0) for _ in work.draws]


class StepLog(EngineMetrics):
    """Metrics that also keep what each step did, and when."""

    def __init__(self, runner: TimedRunner):
        super().__init__(runner.bytes_per_block)
        self.runner, self.steps = runner, []
        self.names: dict[str, str] = {}

    def record_step(self, step: ScheduledStep, num_blocks_used: int) -> None:
        """Count a step, and keep it."""
        super().record_step(step, num_blocks_used)
        record = as_record(step)
        record["scheduled"] = [[self.names[name], *rest] for name, *rest in record["scheduled"]]
        for key in ("admitted", "preempted"):
            record[key] = [self.names[name] for name in record.get(key, ())]
        self.steps.append((self.runner.began, self.runner.now, record))


def serve(arrivals: list[Arrival], names: Sequence[str] = (), **settings: Any) -> Served:
    """Serve all requests; `settings` are of SchedulerConfig.

    The records of steps call the requests by `names`, or r0, r1, ….
    """
    runner = TimedRunner()
    engine = Engine(runner, SchedulerConfig(**{"num_blocks": 1000, **settings}),
                    clock=lambda: runner.now)
    engine.metrics = log = StepLog(runner)
    coming, generations = deque(sorted(arrivals, key=lambda each: each.time)), []
    while coming or engine.has_requests:
        if not engine.has_requests:
            runner.now = max(runner.now, coming[0].time)
        while coming and coming[0].time <= runner.now:
            time, prompt, answer = coming.popleft()
            generation = engine.submit([0] * prompt, answer)
            log.names[generation.request.name] = (
                names[len(generations)] if names else generation.request.name)
            generation.submitted = time          # it may have come while a step ran
            generations.append(generation)
        engine.step()
    return Served(generations, log.steps, log.summary(engine.scheduler))


Steps = list[list[tuple[str, int, int]]]        # of each step: name, computed before, tokens


def compare_with_library(lesson: Lesson, sizes: Mapping[str, tuple], found: Mapping[str, Steps]
                         ) -> None:
    """Compare the steps that the lesson's scheduler `found`; serve requests in virtual time."""
    lesson.say("The library's scheduler also shares blocks of equal prefixes, lets a request have "
               "several answers, and can swap blocks to the host. Without these it makes the same "
               "steps:")
    lesson.table([Row(f"{name}: steps that differ", 0, sum(a != b for a, b in zip(
        found[name], library_steps(*size), strict=True))) for name, size in sizes.items()])
    runs = batches(lesson)
    under_load(lesson)
    budgets(lesson)
    preemption(lesson)
    speculation(lesson)
    lesson.picture(lambda path: draw_request_timeline(
        path, {name: run.steps for name, run in runs.items()},
        dict.fromkeys(LENGTHS, 0.0), f"Six requests, {AT_ONCE} at a time"))


def library_steps(requests: Mapping[str, tuple[int, int]], budget: int, num_blocks: int, most: int,
                  static: bool = False) -> Steps:
    """The steps of the library's scheduler, with requests {name: (prompt, answer)} in blocks of 4.

    Raises ValueError if a request is refused, because it could never run.
    """
    config = SchedulerConfig(num_blocks, 4, token_budget=budget, max_requests=most,
                             policy="static" if static else "token_budget")
    played = play(Scenario(config, [ScriptedRequest(name, 0, [0] * prompt, [[0] * answer])
                                    for name, (prompt, answer) in requests.items()]))
    if "refused" in played:
        raise ValueError(f"refused: {played['refused']}")
    return [[(name, start, num_tokens) for name, start, num_tokens, _ in step["scheduled"]]
            for step in played["steps"]]


def batches(lesson: Lesson) -> dict[str, Served]:
    """Serve the six requests in static batches and continuously."""
    arrivals = [Arrival(0.0, *lengths) for lengths in LENGTHS.values()]
    runs = {name: serve(arrivals, list(LENGTHS), max_requests=AT_ONCE, policy=policy)
            for name, policy in (("static batches", "static"),
                                 ("continuous batching", "token_budget"))}
    answered = [answer for _, answer in LENGTHS.values()]
    predicted = [sum(max(answered[i:i + AT_ONCE]) for i in range(0, len(answered), AT_ONCE)),
                 max(max(answered), math.ceil(sum(answered) / AT_ONCE))]
    lesson.say(f"A step takes max({1e3 * READ:g} ms, {1e3 * COMPUTE:g} ms · tokens) of virtual "
               f"time. Six requests want {', '.join(map(str, answered))} tokens, {AT_ONCE} at a "
               "time:")
    lesson.table([row for (name, run), steps, why in zip(runs.items(), predicted, (
        "Σ of the longest answers", "⌈Σ tokens / 3⌉")) for row in (
            Row(f"{name}: steps, {why}", steps, len(run.steps)),
            Row(f"{name}: ms", 1e3 * steps * READ, 1e3 * run.steps[-1][1], "ms"))], "six requests")
    return runs


def under_load(lesson: Lesson) -> None:
    """Serve requests that come at random, by three policies."""
    lesson.say("80 requests come at random, 10 in a second, and 16 run at a time. Prompts have 200 "
               "tokens on average, answers 40. Milliseconds of virtual time:")
    arrivals, rows = poisson_arrivals(80, 10.0, 1000, mean_prompt=200, mean_answer=40), []
    for name, settings in (("static", {"policy": "static"}),
                           ("prompts first", {"policy": "prompts_first"}),
                           ("continuous", {}),
                           ("… 100 tokens a step", {"token_budget": 100})):
        found = serve(arrivals, max_requests=16, **settings).summary
        rows.append((name, *(f"{1e3 * seconds:,.0f}" for seconds in (
            found.first_token_median, found.first_token_p95, found.gap_median, found.gap_p95)),
            f"{found.tokens_per_second:,.0f}"))
    lesson.grid(["", "first token, median", "95 %", "gap between tokens, median", "95 %",
                 "tokens a second"], rows)


def budgets(lesson: Lesson) -> None:
    """Let a long prompt come while others decode, with several token budgets."""
    lesson.say(f"A prompt of {LONG} tokens comes while {OTHERS} requests decode. With a budget of "
               f"b tokens a step, {OTHERS} go to them, and b − {OTHERS} to the prompt:")
    rows = []
    for budget in (None, 256, 104, 32):
        arrivals = [Arrival(0.0, 1, 300)] * OTHERS + [Arrival(COMES, LONG, 5)]
        run = serve(arrivals, token_budget=budget)
        room = LONG if budget is None else budget - OTHERS
        chunks = [min(room, LONG - start) for start in range(0, LONG, room)]
        *others, long = run.generations
        gaps = np.concatenate([np.diff(each.token_times) for each in others])
        computed = [step["scheduled"][OTHERS:] for _, _, step in run.steps]
        prompts = sum(bool(chunk) and chunk[0][1] < LONG for chunk in computed)
        left = READ - COMES % READ                  # of the step that runs when the prompt comes
        rows += [Row(f"b = {budget or '∞'}: chunks of the prompt", len(chunks), prompts),
                 Row("   longest gap of the others: a step of b tokens",
                     1e3 * step_seconds(budget or LONG + OTHERS), 1e3 * float(gaps.max()), "ms"),
                 Row("   its first token: the rest of a step, then all chunks",
                     1e3 * (left + sum(step_seconds(OTHERS + chunk) for chunk in chunks)),
                     1e3 * (long.token_times[0] - long.submitted), "ms")]
    lesson.table(rows, "a long prompt", "virtual")


def preemption(lesson: Lesson) -> None:
    """Run a small GPT in a pool with too few blocks, by recomputation and by swapping."""
    draw, model = np.random.default_rng(0), small_gpt()
    prompts = [draw.integers(0, VOCABULARY, length).tolist() for length in (7, 9, 5, 8)]
    expected, _ = answers(model, prompts, 10)
    once, rows = sum(len(prompt) + 10 - 1 for prompt in prompts), []
    for way in ("recompute", "swap"):
        found, summary = answers(model, prompts, 10, num_blocks=9, preempt_by=way)
        assert summary.num_preemptions, "there were enough blocks"
        rows += [Row(f"{way}: tokens computed, and those of them computed again",
                     once + summary.tokens_computed_again, summary.tokens_computed),
                 Row("   tokens of the answers that differ", 0, differing(found, expected))]
    blocks = sum(-(-(len(prompt) + 10 - 1) // 4) for prompt in prompts)
    lesson.say(f"Four answers of a small GPT need {blocks} blocks of 4 tokens; the pool has 9. The "
               "latest request gives its blocks back, and is computed again later; or they wait on "
               "the host. Both give the same tokens:")
    lesson.table(rows, "preempted")


def speculation(lesson: Lesson) -> None:
    """Count the tokens that a call of the target yields with drafts of a smaller model."""
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.6, 0.1, 0.15, 0.15])
    counted = {drafts: speculate(p, q, drafts, 3000) for drafts in (1, 2, 4, 8)}
    assert all(abs(measured / predicted - 1) < 0.05 for predicted, measured in counted.values())
    lesson.say("A single request leaves most of a step unused, too. So a small model drafts γ "
               "tokens, and one step of the large one checks them all. A draft is accepted with "
               f"α = Σ min(p, q) = {np.minimum(p, q).sum():.1f}; the answer is still drawn from p.")
    lesson.table([Row(f"γ = {drafts}: tokens a call, (1 − α^(γ+1))/(1 − α)", *both, "", ABOUT)
                  for drafts, both in counted.items()], "speculative decoding")
