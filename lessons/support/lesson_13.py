"""Lesson 13: the library's four schedules beside the lesson's two rows; costs, times, picture."""

from collections.abc import Callable

import numpy as np

from minipar.comm.simulated.links import Link
from minipar.nn import MLP
from minipar.parallel.cost import pipelines
from minipar.parallel.pipeline.schedule.actions import Action
from minipar.parallel.pipeline.schedule.metrics import bubble
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.pipeline.schedule.simulate import FREE_LINK, Times, simulate
from minipar.parallel.strategy import Microbatch
from minipar.viz import draw_pipelines

from .kit import ABOUT, AT_MOST, EQUAL, Lesson, Row, number
from .lesson_12 import library_gradients
from .pipeline_runs import Run, distance, gradients, run, serial
from .pipeline_timelines import from_rank_0, one_clock, played, times_of, too_early, typical

WIDTH, LAYERS, ROWS, FLOAT = 128, 4, 64, 8      # layers of each rank; samples of a microbatch
STEPS = 4
TITLES = {"1f1b": "1F1B", "interleaved": "interleaved", "zb_h1": "ZB-H1", "zb_v": "ZB-V"}
STAGES = {"1f1b": 1, "interleaved": 2, "zb_h1": 1, "zb_v": 2}           # of each rank: v
BUBBLES = {"1f1b": "(p−1)/m", "interleaved": "(p−1)/(v m)",
           "zb_h1": "(p−1)(F+I−W)/(m(F+I+W))", "zb_v": "half of ZB-H1's"}
LIVE = {"1f1b": "p − s", "interleaved": "2(p−s−1) + (v−1)p + 1", "zb_h1": "p", "zb_v": "2p"}
BOUNDARIES = {"1f1b": "(p−1)", "interleaved": "(v p − 1)", "zb_h1": "(p−1)", "zb_v": "2(p−1)"}


def bubble_of(schedule: list[list[tuple]], v: int) -> float:
    """Idle time over work, if F = I = W, a rank has v stages, and messages take no time."""
    actions = [[Action(*action) for action in row] for row in schedule]
    return bubble(simulate(actions, Times().shared(v))).of_ideal


def compare_with_library(lesson: Lesson, interleaved: Callable, zb_h1: Callable,
                         run_row: Callable) -> None:
    """Compare the lesson's rows and gradients with the library's; run all four schedules."""
    p = lesson.comm.size
    m, n = 2 * p, ROWS * WIDTH * FLOAT          # microbatches; bytes of an activation
    compare_rows(lesson, {"interleaved": lambda r: interleaved(p, m, 2, r),
                          "zb_h1": lambda r: zb_h1(p, m, r)}, run_row, m)
    draw = np.random.default_rng(0)
    batches = [Microbatch(draw.standard_normal((ROWS, WIDTH)), draw.integers(0, WIDTH, ROWS),
                          np.arange(ROWS)) for _ in range(m)]
    shapes = [WIDTH] * (p * LAYERS + 1)
    expected_loss, expected = serial(MLP(shapes).initialize(0, np.float64), batches)
    runs = {name: run(lesson.comm, name, MLP(shapes).initialize(0, np.float64), batches)
            for name in TITLES}
    formula = {name: pipelines.bubble(name, p, m, Times().shared(v), v).of_ideal
               for name, v in STAGES.items()}
    schedules_alone(lesson, formula, p, m)
    check_gradients(lesson, runs, expected_loss, expected)
    count_costs(lesson, runs, m, n)
    predict_times(lesson, runs, formula, m, n)


def values(p: int, v: int, m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of v stages on each of p ranks, samples and labels (m, rows, …)."""
    draw = np.random.default_rng(m)
    return (draw.standard_normal((v * p, 8, 8)) / 2, draw.standard_normal((m, 3, 8)),
            draw.integers(0, 8, (m, 3)))


def compare_rows(lesson: Lesson, rows_of: dict[str, Callable], run_row: Callable, m: int) -> None:
    """Assert that the lesson's rows are the library's, and its gradients the executor's."""
    comm, p, rows = lesson.comm, lesson.comm.size, []
    for name, row_of in rows_of.items():
        schedule, _ = make_schedule(name, p, m)
        given = values(p, STAGES[name], m)
        right = library_gradients(comm, name, *given)
        found = run_row(comm, row_of(comm.rank), *given)
        rows += [Row(f"{TITLES[name]}: actions that differ from the lesson's", 0, sum(
                     mine != tuple(action) for r, row in enumerate(schedule)
                     for mine, action in zip(row_of(r), row, strict=True))),
                 Row("    difference of a gradient", 1e-13, max(
                     np.abs(grad - right[s]).max() for s, grad in found.items()), "", AT_MOST)]
    lesson.say("The library's schedules are such rows, too, which its executor runs on stages of "
               "any model:")
    lesson.table(rows)


def activation_bytes(n: int) -> dict[str, int]:
    """Bytes that a stage keeps for a microbatch: its input, and the output of each layer."""
    return {name: (LAYERS // v + 1) * n for name, v in STAGES.items()}


def schedules_alone(lesson: Lesson, formula: dict[str, float], p: int, m: int) -> None:
    """Compare each schedule's bubble with its formula: equal stages, and messages for nothing."""
    lesson.say(f"m = {m} microbatches on p = {p} ranks. First the schedules alone: F, I and W take "
               "equally long and messages no time. Idle time as a share of the work:")
    lesson.table([*(Row(f"{TITLES[name]}: {BUBBLES[name]}", formula[name],
                        bubble(played(name, p, m)).of_ideal) for name in TITLES),
                  Row(f"… of {STEPS} steps without a stop: 1/{STEPS}", formula["zb_v"] / STEPS,
                      bubble(played("zb_v", p, m, num_steps=STEPS)).of_ideal)], "bubble")
    lesson.say("Zero bubble is not zero within one step. In ZB-V rank s never waits between two "
               "actions, but it starts s forwards late and ends p − 1 − s early. It could start "
               "the next step early, too, but the optimizer makes all ranks wait: clipping and the "
               "check for infinities need sums over all stages. The authors skip this "
               "synchronization. Each rank steps at once and validates its step when the sums "
               "arrive; in the rare case that they require another step, it undoes its own and "
               "repeats it (post-validation). Then the corners of successive steps fit into each "
               "other: the last row.")


def check_gradients(lesson: Lesson, runs: dict[str, Run], expected_loss: float,
                    expected: dict[str, np.ndarray]) -> None:
    """Compare each schedule's loss and gradients with one process."""
    comm, p = lesson.comm, lesson.comm.size
    lesson.say(f"Now an MLP of {p * LAYERS} layers runs these schedules, with {ROWS} samples a "
               "microbatch, in float64. An action starts only when everything it needs is done, "
               "and each schedule gives the gradients of one process.")
    lesson.counts([row for name, one in runs.items() for row in (
        Row(f"{TITLES[name]}: loss", expected_loss, one.seen.loss),
        Row("… difference of a gradient", 1e-12, distance(gradients(one.strategy), expected), "",
            AT_MOST),
        Row("… actions that started too early", 0, too_early(comm, one),
            rule=EQUAL if one_clock(comm) else ABOUT))], "Losses, gradients, order of actions")


def count_costs(lesson: Lesson, runs: dict[str, Run], m: int, n: int) -> None:
    """Count the messages and activations of each schedule; n: the bytes of an activation."""
    p, s, each = lesson.comm.size, lesson.comm.rank, activation_bytes(n)
    boundaries = {"1f1b": p - 1, "interleaved": 2 * p - 1, "zb_h1": p - 1, "zb_v": 2 * (p - 1)}
    live = {"1f1b": p - s, "interleaved": 2 * (p - s - 1) + p + 1, "zb_h1": p, "zb_v": 2 * p}
    lesson.say("The price of each schedule. A message of `b d` numbers crosses each boundary "
               "between ranks forward, another one backward. Activations wait for their W; a stage "
               "with half the layers keeps half as many, and its input. (Arrays that only I needs "
               "are freed after I, and where a V turns, its two stages share an array.)")
    lesson.counts([row for name, one in runs.items() for row in (
        Row(f"{TITLES[name]}: sent, 2 m b d · {BOUNDARIES[name]}", 2 * m * n * boundaries[name],
            one.seen.sent, "B"),
        Row(f"… in flight, {LIVE[name]}", live[name], one.strategy.pipeline.most_in_flight),
        Row(f"… activations, each {each[name]:,} B", live[name] * each[name], one.activations, "B",
            AT_MOST if name in ("zb_h1", "zb_v") else EQUAL))], f"The price on rank s = {s}")
    lesson.grid([f"rank s = {s}", "sent by all, B", "· 2 m b d", "in flight", "", "kept, B"], [
        (TITLES[name], number(one.seen.sent), BOUNDARIES[name],
         number(one.strategy.pipeline.most_in_flight), LIVE[name], number(one.activations))
        for name, one in runs.items()])


def predict_times(lesson: Lesson, runs: dict[str, Run], formula: dict[str, float], m: int,
                  n: int) -> None:
    """Predict each schedule's time from the times of F, I and W; draw the timelines."""
    comm, p = lesson.comm, lesson.comm.size
    simulated = comm.is_simulated
    link = Link(comm.cluster.latency, comm.cluster.bandwidth) if simulated else FREE_LINK
    bubbles, times, timelines = [], [], {}
    for name, one in runs.items():
        replayed = one.timeline and played(
            name, p, m, times_of(one.timeline) if simulated else
            typical(runs["zb_h1"].timeline).shared(STAGES[name]), link, n)
        idle = from_rank_0(comm, one.timeline and bubble(one.timeline).of_ideal)
        measured = from_rank_0(comm, one.timeline and one.timeline.makespan())
        predicted = from_rank_0(comm, replayed and replayed.makespan())
        # In a V two of a rank's stages may send at once, in an order that is not determined.
        exact = simulated and name != "zb_v"
        bubbles.append(Row(TITLES[name], formula[name], idle, "", ABOUT))
        times.append(Row(TITLES[name], 1e3 * predicted, 1e3 * measured, "ms",
                         EQUAL if exact else ABOUT))
        timelines[f"{TITLES[name]}, {m} microbatches" + ("" if simulated else ", predicted")] = (
            one.timeline if simulated else replayed)
    lesson.table(bubbles, "bubble of the ideal", lesson.clock)
    lesson.table(times, "time, from F, I and W", lesson.clock)
    lesson.say("More messages mean more waiting for them; the bubble is larger than the formula by "
               "the time of the links. The first stage computes no I for its first layer." + (
                   "" if simulated else " The prediction, also in the picture, simulates the "
                   "schedules with the shortest measured F, I and W, and free links. The rest is "
                   "bookkeeping and, with fewer cores than ranks, waiting for a core."))
    kept = dict(zip(timelines, activation_bytes(n).values()))
    lesson.picture(lambda path: draw_pipelines(path, timelines, kept))
