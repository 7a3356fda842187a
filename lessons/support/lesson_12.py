"""Lesson 12: the library's executor beside the lesson's two schedules; times, faults, picture."""

import numpy as np

from minipar.comm import Communicator
from minipar.comm.collectives import gather_object
from minipar.comm.mesh import DeviceMesh
from minipar.nn import MLP
from minipar.parallel.cost import pipelines
from minipar.parallel.pipeline.schedule.actions import Action, Schedule
from minipar.parallel.pipeline.schedule.metrics import bubble
from minipar.parallel.pipeline.schedule.schedules import gpipe, one_f_one_b
from minipar.parallel.pipeline.schedule.simulate import Times
from minipar.parallel.pipeline.schedule.timeline import Timeline
from minipar.parallel.pipeline.schedule.validate import find_fault
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.viz import draw_pipelines

from .kit import ABOUT, EQUAL, Lesson, Row
from .pipeline_runs import Run, distance, gradients, run, serial
from .pipeline_timelines import from_rank_0, milliseconds, replay
from .plain_mlp import mlp_of

WIDTH, LAYERS, ROWS, FLOAT = 128, 4, 64, 8      # layers of each rank; samples of a microbatch
M = 8                                           # microbatches
TITLES, LIVE = {"gpipe": "GPipe", "1f1b": "1F1B"}, {"gpipe": "m", "1f1b": "min(m, p − s)"}


def compare_with_library(lesson: Lesson, weights: np.ndarray, x: np.ndarray, labels: np.ndarray,
                         *found: np.ndarray) -> None:
    """Compare `found`, this rank's gradients by GPipe and by 1F1B, and run a larger model."""
    comm, p = lesson.comm, lesson.comm.size
    lesson.say("The library's executor runs any schedule, on stages of any model. On the same "
               "weights and samples:")
    lesson.table([Row(f"{TITLES[name]}: difference from the lesson's gradient", 1e-14,
                      np.abs(library_gradients(comm, name, weights, x, labels)[comm.rank]
                             - mine).max(), "", "≤")
                  for name, mine in zip(TITLES, found, strict=True)])
    draw = np.random.default_rng(0)
    batches = [Microbatch(draw.standard_normal((ROWS, WIDTH)), draw.integers(0, WIDTH, ROWS),
                          np.arange(ROWS)) for _ in range(M)]
    runs = {name: run(comm, name, mlp(p), batches) for name in TITLES}
    one = run(comm, "gpipe", mlp(p), batches[:1]).activations
    lesson.say(f"An MLP of {p * LAYERS} layers on p = {p} ranks, m = {M} microbatches of {ROWS} "
               "samples, float64. What both schedules share:")
    compare_values(lesson, runs, batches)
    compare_memory(lesson, runs, one)
    timelines = compare_times(lesson, runs)
    show_faults(lesson, p)
    sizes = gather_object(comm, one)
    lesson.picture(lambda path: draw_pipelines(path, timelines, sizes))


def library_gradients(comm: Communicator, name: str, weights: np.ndarray, x: np.ndarray,
                      labels: np.ndarray) -> list[np.ndarray]:
    """Collective.  All weights' gradients by the schedule `name`, for x and labels (m, rows, …)."""
    model = mlp_of(weights)
    strategy = Strategy(model, DeviceMesh(comm, pp=comm.size), schedule=name)
    rows = np.arange(x.shape[1])
    strategy.forward_backward([Microbatch(*each, rows) for each in zip(x, labels)])
    grads = strategy.slabs.named([slab.grad for slab in strategy.slabs])
    return [grads[f"{2 * i}.weight"] for i in range(len(weights))]


def compare_values(lesson: Lesson, runs: dict[str, Run], batches: list[Microbatch]) -> None:
    """Loss, gradients and bytes of both schedules."""
    p = lesson.comm.size
    loss, expected = serial(mlp(p), batches)
    rows = []
    for name, done in runs.items():
        rows += [
            Row(f"{TITLES[name]}: loss", loss, done.seen.loss),
            Row(f"{TITLES[name]}: difference of a gradient from one process", 1e-12,
                distance(gradients(done.strategy), expected), "", "≤"),
            Row(f"{TITLES[name]}: sent, 2 m b d over each of p − 1 boundaries",
                2 * M * ROWS * WIDTH * (p - 1) * FLOAT, done.seen.sent, "B")]
    lesson.table(rows, "equal")


def compare_memory(lesson: Lesson, runs: dict[str, Run], one: int) -> None:
    """Microbatches in flight and activations; `one` is the bytes of a microbatch."""
    p, s = lesson.comm.size, lesson.comm.rank
    lesson.say("They differ in the activations that wait for their backward. Rank 0 keeps the "
               "most.")
    rows = []
    for name, done in runs.items():
        rows += [
            Row(f"{TITLES[name]}: microbatches in flight, {LIVE[name]}", live(name, p, s),
                done.strategy.pipeline.most_in_flight),
            Row(f"{TITLES[name]}: activations, each {one:,} B", live(name, p, s) * one,
                done.activations, "B")]
    lesson.table(rows, f"on this rank, s = {s}")


def compare_times(lesson: Lesson, runs: dict[str, Run]) -> dict[str, Timeline]:
    """Bubble and time of both schedules; return their timelines by title, for the picture."""
    comm, p = lesson.comm, lesson.comm.size
    rows, timelines = [], {}
    for name, done in runs.items():
        measured = done.timeline            # None on all ranks but 0, as what follows from it
        predicted = None if measured is None else replay(comm, name, M, measured,
                                                         ROWS * WIDTH * FLOAT)
        idle = None if measured is None else bubble(measured).of_total
        rows += [
            Row(f"{TITLES[name]}: bubble of the total, (p−1)/(m+p−1)",
                pipelines.bubble(name, p, M, Times()).of_total, from_rank_0(comm, idle), "",
                ABOUT),
            Row(f"{TITLES[name]}: ms, from the times of its stages",
                milliseconds(comm, predicted), milliseconds(comm, measured), "ms",
                EQUAL if comm.is_simulated else ABOUT)]
        title = f"{TITLES[name]} on {p} ranks, {M} microbatches"
        if comm.is_simulated:
            timelines[title] = measured
        else:
            timelines |= {f"{title}: predicted": predicted, f"{title}: measured": measured}
    lesson.table(rows, "time", lesson.clock)
    lesson.say("The formula assumes that all stages take equally long and messages no time. Here "
               "the first stage computes no gradient of its input, and messages do take time; 1F1B "
               "waits for them more often. " + (
                   "Simulated with the measured times of the stages and the cluster's links, the "
                   "schedule takes exactly as long as it did." if comm.is_simulated else
                   "The prediction, drawn beside the measurement, simulates the schedule with the "
                   "shortest measured F and B, and free links. The rest is time for messages, for "
                   "bookkeeping and for waiting for a core."))
    return timelines


def mlp(num_ranks: int) -> MLP:
    """LAYERS equal layers for each rank."""
    return MLP([WIDTH] * (num_ranks * LAYERS + 1)).initialize(0, np.float64)


def live(name: str, p: int, s: int) -> int:
    """The most microbatches in flight on stage s of p."""
    return M if name == "gpipe" else min(M, p - s)


def show_faults(lesson: Lesson, p: int) -> None:
    """Show three wrong versions of 1F1B, and the fault that `find_fault` reports for each."""
    def spoilt(rank: int, row: list[Action]) -> Schedule:
        return [row if r == rank else good for r, good in enumerate(one_f_one_b(p, M))]
    first, *_, last = one_f_one_b(p, M)
    mistakes = {"deadlock": ("the last rank does all its forwards first",
                             spoilt(p - 1, gpipe(p, M)[-1])),
                "out of order": ("a backward before its forward",
                                 spoilt(p - 1, [last[1], last[0], *last[2:]])),
                "missing": ("rank 0 forgets its last backward", spoilt(0, first[:-1]))}
    faults = {kind: find_fault(schedule) for kind, (_, schedule) in mistakes.items()}
    assert find_fault(one_f_one_b(p, M)) is None
    assert all(fault.kind == kind for kind, fault in faults.items())
    lesson.say("A schedule is a list, so it can be checked before it runs:\n\n" + "\n".join(
        f"- *{mistakes[kind][0]}*: {fault.sentence}" for kind, fault in faults.items()))
