"""Lesson 13. Interleaved 1F1B and zero bubble: can the bubble shrink without more microbatches?

1F1B idles for p - 1 forwards and p - 1 backwards, of all that a rank does with a microbatch.

    interleaved   v small stages on each rank         what is waited for is shorter: bubble / v,
                                                      and messages · v
    ZB-H1         B = I + W.  The stage before waits  W goes where a rank would idle, which leaves
                  for I, the gradient of the input;   (p-1)(F + I - W), a third of the bubble;
                  for W, of the weights, nobody does  activations are kept until W
    ZB-V          both: two stages on each rank, in   half of that third
                  a V, and backward in halves

    python lessons/13_interleaved_and_zero_bubble.py
    mpirun -n 4 python lessons/13_interleaved_and_zero_bubble.py
"""

import numpy as np
from support.kit import ABOUT, AT_MOST, EQUAL, Lesson, Row
from support.pipeline_runs import (
    Run,
    distance,
    from_rank_0,
    gradients,
    run,
    serial,
    times_of,
    typical,
)

from minipar.comm import Communicator
from minipar.comm.collectives import agree_on_sum
from minipar.comm.simulated.topology import Link
from minipar.launcher import launch
from minipar.nn import MLP
from minipar.parallel.pipeline import FREE_LINK, Timeline, Times, make_schedule, simulate
from minipar.parallel.pipeline.schedule.dependencies import OPS, needs
from minipar.parallel.pipeline.schedule.metrics import bubble
from minipar.parallel.strategy import Microbatch
from minipar.viz.pipeline import draw_pipelines

WIDTH, LAYERS, ROWS, FLOAT = 128, 4, 64, 8      # layers of each rank; samples of a microbatch
STEPS = 4
TITLES = {"1f1b": "1F1B", "interleaved": "interleaved", "zb_h1": "ZB-H1", "zb_v": "ZB-V"}
STAGES = {"1f1b": 1, "interleaved": 2, "zb_h1": 1, "zb_v": 2}           # of each rank: v
BUBBLES = {"1f1b": "(p−1)/m", "interleaved": "(p−1)/(v m)",
           "zb_h1": "(p−1)(F+I−W)/(m(F+I+W))", "zb_v": "half of ZB-H1's"}
LIVE = {"1f1b": "p − s", "interleaved": "2(p−s−1) + (v−1)p + 1", "zb_h1": "p", "zb_v": "2p"}
BOUNDARIES = {"1f1b": "p−1", "interleaved": "v p − 1", "zb_h1": "p−1", "zb_v": "2(p−1)"}


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, "Can the bubble be smaller without more microbatches?",
                    min_ranks=2)
    p, s = comm.size, comm.rank
    m, n = 2 * p, ROWS * WIDTH * FLOAT          # microbatches; bytes of an activation
    draw = np.random.default_rng(0)
    batches = [Microbatch(draw.standard_normal((ROWS, WIDTH)), draw.integers(0, WIDTH, ROWS),
                          np.arange(ROWS)) for _ in range(m)]
    shapes = [WIDTH] * (p * LAYERS + 1)
    expected_loss, expected = serial(MLP(shapes).initialize(0, np.float64), batches)
    runs = {name: run(comm, name, MLP(shapes).initialize(0, np.float64), batches)
            for name in TITLES}
    formula = {"1f1b": (p - 1) / m, "interleaved": (p - 1) / (2 * m), "zb_h1": (p - 1) / (3 * m),
               "zb_v": (p - 1) / (6 * m)}
    lesson.say(f"m = {m} microbatches on p = {p} ranks. From the lists alone, where F, I and W "
               "take equally long and messages no time, idle time as a share of the work:")
    lesson.table([*(Row(f"{TITLES[name]}: {BUBBLES[name]}", formula[name],
                        bubble(played(name, p, m)).of_ideal) for name in TITLES),
                  Row(f"… of {STEPS} steps without a stop: 1/{STEPS}", formula["zb_v"] / STEPS,
                      bubble(played("zb_v", p, m, num_steps=STEPS)).of_ideal)], "bubble")
    lesson.say("Zero bubble is not zero within one step: ZB-V's rank s never waits between two "
               "actions, but begins s forwards late and ends p − 1 − s early. It could begin the "
               "next step as early, if the optimizer did not make all ranks wait: the norm that "
               "clips and the check for infinities are sums over all stages. The authors skip this "
               "synchronization. Each rank steps at once and looks at the sums when they arrive; "
               "where they ask for another step, which is rare, it takes its own back and repeats "
               "it (post-validation). Then the corners of successive steps fit into each other: "
               "the last row.")

    lesson.say(f"Now an MLP of {p * LAYERS} layers, {ROWS} samples a microbatch, float64, runs "
               "these lists. An action begins when what it needs is done; each schedule gives the "
               "gradients of one process.")
    lesson.table([row for name, one in runs.items() for row in (
        Row(f"{TITLES[name]}: loss", expected_loss, one.seen.loss),
        Row("… difference of a gradient", 1e-12, distance(gradients(one.strategy), expected), "",
            AT_MOST),
        Row("… actions begun too early", 0, too_early(comm, one),
            rule=EQUAL if one_clock(comm) else ABOUT))], "equal")
    boundaries = {"1f1b": p - 1, "interleaved": 2 * p - 1, "zb_h1": p - 1, "zb_v": 2 * (p - 1)}
    live = {"1f1b": p - s, "interleaved": 2 * (p - s - 1) + p + 1, "zb_h1": p, "zb_v": 2 * p}
    each = {name: (LAYERS // v + 1) * n for name, v in STAGES.items()}  # x, and y of each layer
    lesson.say("What they pay. A message of `b h` numbers goes over each boundary between ranks, "
               "there and back. Activations wait for their W; a stage of half the layers keeps "
               "half as many, and its input. (What only I needs goes with I, and where a V turns "
               "the two stages share an array.)")
    lesson.table([row for name, one in runs.items() for row in (
        Row(f"{TITLES[name]}: sent, 2 m b h · {BOUNDARIES[name]}", 2 * m * n * boundaries[name],
            one.seen.sent, "B"),
        Row(f"… in flight, {LIVE[name]}", live[name], one.strategy.most_in_flight),
        Row(f"… activations, each {each[name]:,} B", live[name] * each[name], one.activations, "B",
            AT_MOST if name in ("zb_h1", "zb_v") else EQUAL))], f"what rank s = {s} pays")

    simulated = comm.is_simulated
    link = Link(comm.cluster.latency, comm.cluster.bandwidth) if simulated else FREE_LINK
    rows, drawn = [], {}
    for name, one in runs.items():
        again = one.timeline and played(
            name, p, m, times_of(one.timeline) if simulated else
            typical(runs["zb_h1"].timeline).shared(STAGES[name]), link, n)
        idle = from_rank_0(comm, one.timeline and bubble(one.timeline).of_ideal)
        took = from_rank_0(comm, one.timeline and one.timeline.makespan())
        predicted = from_rank_0(comm, again and again.makespan())
        # In a V two of a rank's stages may send at once: who comes first is a matter of luck.
        exact = simulated and name != "zb_v"
        rows += [Row(f"{TITLES[name]}: bubble of the ideal", formula[name], idle, "", ABOUT),
                 Row("… ms, from F, I and W", 1e3 * predicted, 1e3 * took, "ms",
                     EQUAL if exact else ABOUT)]
        drawn[f"{TITLES[name]}, {m} microbatches" + ("" if simulated else ", predicted")] = (
            one.timeline if simulated else again)
    lesson.table(rows, "time", lesson.clock)
    lesson.say("More messages, more waiting for them: what is left of the bubble is what links "
               "take. The first stage has no I of its first layer." + (
                   "" if simulated else " Predicted, and drawn, is how long the lists take with "
                   "the least F, I and W that were seen, and free links; what is more is "
                   "bookkeeping, and where there are fewer cores than ranks waiting for a core."))
    lesson.picture(lambda path: draw_pipelines(drawn, path, dict(zip(drawn, each.values()))))
    lesson.takeaway("Smaller stages divide the bubble by v and multiply messages by v; W in the "
                    "gaps leaves a third of it, and keeps activations longer. Neither needs one "
                    "microbatch more.")
    lesson.exercises(questions=[
        "W > min(F, I): why does ZB-H1's formula no longer hold?",
        "Messages take a tenth of F. From which v on does interleaving lose?",
        "1F1B's last rank keeps one microbatch, ZB-H1's p. Whose memory decides?"])


def played(name: str, p: int, m: int, times: Times | list[Times] | None = None,
           link: Link = FREE_LINK, num_bytes: int = 0, num_steps: int = 1) -> Timeline:
    """The schedule in time, `num_steps` times; stages take equally long unless `times` are given.
    """
    schedule, placement = make_schedule(name, p, m)
    rows = [[action._replace(microbatch=action.microbatch + step * m)
             for step in range(num_steps) for action in row] for row in schedule]
    return simulate(rows, times or Times().shared(STAGES[name]), placement, link, num_bytes)


def too_early(comm: Communicator, one: Run) -> int:
    """How many actions, of all ranks, began before something that they need was done."""
    found = 0
    if one.timeline:
        done = {(kind, i.stage, i.microbatch): i.end for i in one.timeline.intervals
                for kind in OPS[i.kind]}
        found = sum(done[need] > i.start for i in one.timeline.intervals
                    for need in needs(i.action, one.strategy.num_stages))
    assert [i.action for i in one.strategy.intervals] == one.strategy.plan(2 * comm.size)[0]
    return int(agree_on_sum(comm, found))


def one_clock(comm: Communicator) -> bool:
    """Whether times of different ranks can be compared: not between real machines."""
    nodes = {comm.node_of(rank) for rank in range(comm.size)}
    return comm.is_simulated or len(nodes) == 1


if __name__ == "__main__":
    launch(main)
