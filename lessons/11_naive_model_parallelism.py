"""Lesson 11. Naive model parallelism: who idles?

A model that does not fit on one device is cut into stages: rank 0 has the first layers, rank 1 the
next ones, and so on.  Each rank needs the activations of the rank before it, and in backward the
gradients of the rank after it.  So at any time one rank works and p - 1 wait.

    rank 0  ▐ F ▌                ▐  B  ▌        p devices take as long as one:
    rank 1       ▐ F ▌    ▐  B  ▌               utilization 1/p, whatever the batch size
    rank 2            ▐ F ▌▐ B ▌

In 2012 AlexNet needed two devices, and its authors cut it the other way: each device had half of
the channels of every layer.  These two columns exchange data only at the third convolution and in
the fully-connected layers, so both devices work all the time (Krizhevsky, Sutskever & Hinton 2012,
section 3.5).

    python lessons/11_naive_model_parallelism.py       mpirun -n 4 python lessons/11_…
"""

import numpy as np
from support.kit import ABOUT, AT_MOST, Lesson, Row
from support.pipeline_runs import (
    Observed,
    distance,
    gradients,
    observe,
    on_free_links,
    serial,
    step_of,
)
from support.two_columns import CLASSES, MEETING, SIZE, TwoColumns, loss_in_columns

from minipar.autograd import backward
from minipar.comm import Communicator, Trace
from minipar.comm.collectives import gather_trace, sum_over_ranks
from minipar.launcher import launch
from minipar.nn import MLP, Module
from minipar.parallel.pipeline.naive import NaiveModelParallel
from minipar.parallel.strategy import Microbatch
from minipar.viz import draw_timelines

WIDTH, LAYERS, ROWS = 128, 4, 256       # of the MLP; layers of each rank; samples of a batch
IMAGES, FLOAT = 128, 8                  # images of a batch; bytes of a number


def batch_of(rows: int, shape: tuple[int, ...], num_classes: int) -> Microbatch:
    """Random samples; the same on all ranks."""
    draw = np.random.default_rng(0)
    return Microbatch(draw.standard_normal((rows, *shape)), draw.integers(0, num_classes, rows),
                      np.arange(rows))


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p = comm.size
    batch = batch_of(ROWS, (WIDTH,), WIDTH)
    expected_loss, expected = serial(mlp(p), [batch])
    strategy, seen = in_stages(comm, mlp(p), batch)
    ideal = on_free_links(comm, lambda comm: in_stages(comm, mlp(p), batch)[1])
    gradient_error = distance(gradients(strategy), expected)
    whole, held = mlp(p).num_parameters(), strategy.slabs[0].data.size

    lesson.say(f"An MLP of {p * LAYERS} layers, {LAYERS} on each of {p} ranks, one batch of {ROWS} "
               "samples, float64. The same numbers as on one device:")
    lesson.table([
        Row("loss", expected_loss, seen.loss),
        Row("gradients: largest difference from one process", 1e-12, gradient_error, "",
            AT_MOST),
        Row("parameters on all ranks together", whole, round(sum_over_ranks(comm, held)), ""),
        Row("sent: an activation and a gradient over each of p − 1 cuts",
            2 * (p - 1) * ROWS * WIDTH * FLOAT, seen.sent, "B"),
        Row("utilization: at most 1/p, less with messages", 1 / p, seen.busy, "", AT_MOST)],
        "layers on different ranks")
    lesson.say("The memory of p devices, the speed of one. A larger batch does not help: each rank "
               "works longer and waits longer. (Several small batches would help: lesson 12.)")
    title = f"An MLP in stages on {p} ranks: one works while {p - 1} wait"
    traces = {**traces_by_title(title, comm, seen, ideal), **columns(lesson, comm)}
    lesson.picture(lambda path: draw_timelines(path, traces))
    lesson.takeaway("Layers on different devices give memory, not speed: utilization stays 1/p "
                    "until you also cut either each layer or the batch.")
    lesson.exercises(questions=[
        "Rank 1's layers take twice as long as the others'. What is the utilization of p ranks?",
        "Here the columns meet twice. What would be sent if they met at every layer?",
        "Why does the last rank need the labels, the first one the inputs, and no rank both?"])


def mlp(num_ranks: int) -> MLP:
    """LAYERS equal layers for each rank."""
    return MLP([WIDTH] * (num_ranks * LAYERS + 1)).initialize(0, np.float64)


def in_stages(comm: Communicator, model: Module,
              batch: Microbatch) -> tuple[NaiveModelParallel, Observed]:
    """Train a batch with the layers in stages, one rank after the other."""
    strategy = NaiveModelParallel(model, comm)
    return strategy, observe(comm, step_of(strategy, [batch]))


def in_columns(comm: Communicator, batch: Microbatch) -> tuple[TwoColumns, Observed]:
    """Train a batch with one column on each of two ranks."""
    model = TwoColumns().initialize(0, np.float64)

    def step() -> float:
        model.zero_grad()
        loss = loss_in_columns(model, batch.inputs, batch.targets, IMAGES, comm)
        backward(loss)
        return loss.item()
    return model, observe(comm, step)


def columns(lesson: Lesson, comm: Communicator) -> dict[str, Trace]:
    """Cut the same small convolutional network both ways on ranks 0 and 1; the others wait."""
    batch = batch_of(IMAGES, (SIZE, SIZE, 3), CLASSES)
    pair = comm.split(0 if comm.rank < 2 else None)
    rows, traces, ideal = [], {}, None
    if pair is not None:
        expected_loss, expected = serial(TwoColumns().initialize(0, np.float64), [batch])
        staged, stages = in_stages(pair, TwoColumns().initialize(0, np.float64), batch)
        model, seen = in_columns(pair, batch)
        one_waits = on_free_links(pair, lambda comm: in_stages(
            comm, TwoColumns().initialize(0, np.float64), batch)[1])
        ideal = on_free_links(pair, lambda comm: in_columns(comm, batch)[1])
        traces = {**traces_by_title("A convolutional network in 2 stages", pair, stages, one_waits),
                  **traces_by_title("… in 2 columns: both ranks work", pair, seen, ideal)}
        mine = {name: parameter.grad for name, parameter in model.named_parameters()
                if name.startswith(f"columns.{pair.rank}")}
        meeting, logits = IMAGES * int(np.prod(MEETING)) * FLOAT, IMAGES * CLASSES * FLOAT
        rows = [Row("loss", expected_loss, seen.loss),
                Row("stages: largest difference of a gradient", 1e-12,
                    distance(gradients(staged), expected), "", AT_MOST),
                Row("columns: largest difference of a gradient", 1e-12, distance(mine, expected),
                    "", AT_MOST),
                Row("stages: both columns' channels, there and back", 2 * 2 * meeting,
                    stages.sent, "B"),
                Row("columns: all-gather, its backward; all-reduce of logits",
                    2 * (2 * meeting + logits), seen.sent, "B"),
                Row("stages: utilization", 1 / 2, stages.busy, "", AT_MOST),
                Row("columns: utilization", ideal.busy if ideal else 1.0, seen.busy, "",
                    ABOUT if ideal else AT_MOST)]
    lesson.say("A small network with AlexNet's layout: four layers with convolutions by im2col, "
               "the channels of every layer in two columns, which exchange data before the third "
               "layer and in the logits. On two ranks, cut into stages (the first two layers, the "
               "last two) and into columns:")
    lesson.table(rows, "a convolutional network on two ranks")
    lesson.say("Nearly as many bytes, but with columns no rank waits for another's layers, only "
               "for messages. Cutting every layer is tensor parallelism (lesson 14)." + (
                   " The prediction, here and in the picture, assumes that no two ranks share a "
                   "device and that messages take no time." if ideal else ""))
    return traces


def traces_by_title(title: str, comm: Communicator, seen: Observed,
                    ideal: Observed | None) -> dict[str, Trace]:
    """The measured trace of all ranks and, if they are real, the predicted one; on rank 0."""
    trace = gather_trace(comm, seen.trace)
    if trace is None:
        return {}
    measured = Trace(trace.select(), trace.spans)
    return {f"{title} (predicted)": ideal.trace, f"{title} (measured)": measured} if ideal else {
        title: measured}


if __name__ == "__main__":
    launch(main)
