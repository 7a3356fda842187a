"""The bubble on two real ranks beside its formula, and both timelines beside each other.

    GPT, 2 blocks on each rank, 8 microbatches of 2 × 128 tokens; of the total 1 / 9 should be idle

    predicted   every stage takes the mean of what stages took, messages take no time: the formula
    measured    the batch whose makespan is the median one

The vocabulary is small, so that the head does not make the last stage's work more than the first's.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import numpy as np

from minipar import viz
from minipar.backend.malloc import keep_freed_memory
from minipar.comm import Communicator
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT
from minipar.parallel.pipeline.schedule.metrics import bubble
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.parallel.pipeline.schedule.timeline import Timeline
from minipar.parallel.strategy import Microbatch, Strategy

from ..gpt import CONFIG, make_batch
from ..timing import Row, interleave, meet, milliseconds

SCHEDULES, NUM_MICROBATCHES, ROWS = {"GPipe": "gpipe", "1F1B": "1f1b"}, 8, 2
SMALL = replace(CONFIG, vocab_size=64)


def measure(comm: Communicator, num_rounds: int, out: Path | None = None) -> Iterator[Row]:
    """Yield the rows, on rank 0, which then draws the timelines into `out`; of two ranks."""
    keep_freed_memory()
    ids, targets = make_batch(NUM_MICROBATCHES * ROWS, SMALL)
    batches = [Microbatch(ids[rows], targets[rows], rows)
               for rows in np.split(np.arange(len(ids)), NUM_MICROBATCHES)]
    seen: dict[str, list[Timeline]] = {name: [] for name in SCHEDULES}
    steps = {name: make_step(comm, kind, batches, seen[name]) for name, kind in SCHEDULES.items()}
    interleave(steps, num_rounds, before=lambda: meet(comm))
    if comm.rank:
        return
    timelines = {}
    for name, found in seen.items():
        found = sorted(found[-num_rounds:], key=Timeline.makespan)
        middle = found[len(found) // 2]
        ideal = predicted(SCHEDULES[name], middle)
        title = f"{name} on {comm.size} ranks, {NUM_MICROBATCHES} microbatches"
        timelines |= {f"{title}: predicted by the formula": ideal, f"{title}: measured": middle}
        share, formula = median(bubble(each).of_total for each in found), bubble(ideal).of_total
        yield Row(f"{name}, bubble of the total, {comm.size} ranks, {NUM_MICROBATCHES} "
                  "microbatches", f"{share:.1%} of {milliseconds(middle.makespan())}",
                  f"formula {formula:.1%}", share / formula)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        viz.draw_pipelines(out / "bubbles.png", timelines)


def make_step(comm: Communicator, kind: str, batches: list[Microbatch], seen: list[Timeline]
              ) -> Callable[[], None]:
    """Forward and backward of a batch, whose timeline is added to `seen` on rank 0."""
    strategy = Strategy(GPT(SMALL).initialize(seed=0), DeviceMesh(comm, pp=comm.size),
                        schedule=kind, cuts=[1 + SMALL.num_layers // 2])

    def step() -> None:
        for slab in strategy.slabs:
            slab.zero_grad()
        comm.start_trace()
        strategy.forward_backward(batches)
        timeline = strategy.pipeline.timeline(comm.stop_trace())
        if timeline is not None:
            seen.append(timeline)
    return step


def predicted(kind: str, measured: Timeline) -> Timeline:
    """Stages that all take the mean of their median times, and messages that take none."""
    schedule, placement = make_schedule(kind, measured.num_ranks, NUM_MICROBATCHES)
    forward, back = (mean(median(i.end - i.start for i in row if i.kind == action)
                          for row in measured.rows()) for action in "FB")
    return simulate(schedule, Times(forward, back, 0), placement)
