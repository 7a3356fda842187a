"""Lesson 30: an engine whose model only takes time, so that schedules can be compared.

A step of T tokens reads all weights once, and computes 2 FLOPs a weight and token: it takes the
longer of both (Williams et al. 2009, the roofline).  Up to 100 tokens cost as much as one.
`minipar.inference.simulated_load` does so with the sizes of a model; here numbers are round.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from minipar.inference import Engine, Generation, SchedulerConfig
from minipar.inference.engine_metrics import EngineMetrics, Summary
from minipar.inference.model_runner import NewToken, StepWork
from minipar.inference.scheduling import Step
from minipar.inference.scheduling.scripted_requests import as_record
from minipar.inference.simulated_load import Arrival

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

    def record_step(self, step: Step, num_blocks_used: int) -> None:
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
