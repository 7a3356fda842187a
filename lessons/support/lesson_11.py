"""Lesson 11: stages and columns of larger models, who idles in time; the picture.

TwoColumns is a small network with AlexNet's layout, two columns of channels on two devices:

    image ─┬─▶ conv1 ─▶ conv2 ─┬─▶ conv3 ─▶ fc ─┐
           │                   ╳ both columns    Σ ─▶ logits
           └─▶ conv1 ─▶ conv2 ─┴─▶ conv3 ─▶ fc ─┘

The columns exchange data in two places only.  Each conv3 sees the channels of both columns, and the
logits are the sum of both columns' logits.  AlexNet has three fully-connected layers, and its
columns exchange data in each of them.  A neuron there sees the whole layer before (Krizhevsky,
Sutskever & Hinton 2012, section 3.5).
"""

from collections.abc import Callable

import numpy as np
from micro import one_process

from minipar import autograd as ag
from minipar.autograd import Tensor, backward
from minipar.backend import Array
from minipar.comm import Communicator, Trace
from minipar.comm.collectives import gather_trace, sum_over_ranks
from minipar.nn import MLP, Linear, Module
from minipar.nn.chain import chain
from minipar.nn.convolution import Conv2d
from minipar.nn.module import ChainPart
from minipar.parallel.conjugate import all_gather, reduce_from
from minipar.parallel.pipeline.naive import NaiveModelParallel
from minipar.parallel.strategy import Microbatch
from minipar.viz import draw_timelines

from .kit import ABOUT, AT_MOST, Lesson, Row
from .pipeline_runs import Observed, distance, gradients, observe, on_free_links, serial, step_of
from .plain_mlp import mlp_of

WIDTH, LAYERS, ROWS = 128, 4, 256       # of the MLP; layers of each rank; samples of a batch
IMAGES, FLOAT = 128, 8                  # images of a batch; bytes of a number
SIZE, CHANNELS, CLASSES = 16, 8, 10     # of images, of a layer in one column
MEETING = (6, 6, CHANNELS)              # shape of a column's activation after conv2
CHANNEL = 3                             # the axis of (b, h, w, c)


def compare_with_library(lesson: Lesson, in_stages: Callable, in_columns: Callable) -> None:
    """Compare the lesson's functions with the library; train an MLP and a convolutional network."""
    comm, p = lesson.comm, lesson.comm.size
    weights, columns, x, labels = values(p, 2 * p)
    lesson.say("The library's strategy cuts any model, and columns are its differentiable "
               "collectives between the layers:")
    lesson.table([Row(f"{name}: difference from the lesson's gradients", 1e-13, max(
        np.abs(mine - right).max() for mine, right in zip(found, theirs, strict=True)), "", AT_MOST)
        for name, found, theirs in (
            ("stages", in_stages(comm, weights, x, labels),
             library_stages(comm, weights, x, labels)),
            ("columns", in_columns(comm, columns[comm.rank], x, labels),
             library_columns(comm, columns[comm.rank], x, labels)))])
    title = f"An MLP in stages on {p} ranks: one works while {p - 1} wait"
    traces = {**traces_by_title(title, comm, *stages(lesson, comm)), **cut_both_ways(lesson, comm)}
    lesson.picture(lambda path: draw_timelines(path, traces))


def values(p: int, num_layers: int) -> tuple:
    """Weights of layers; a column of four layers for each rank; samples and labels."""
    draw = np.random.default_rng(num_layers)
    return (draw.standard_normal((num_layers, 8, 8)) / 2,
            [[draw.standard_normal((rows, 8)) for rows in (8, 8, 8 * p, 8)] for _ in range(p)],
            draw.standard_normal((5, 8)), draw.integers(0, 8, 5))


def columns_in_one_process(columns: list[list[np.ndarray]], x: np.ndarray,
                           labels: np.ndarray) -> list[list[np.ndarray]]:
    """Each column's gradients: together they are an MLP whose second layer keeps them apart."""
    p, d = len(columns), len(columns[0][1])
    first, second, third, last = ([column[i] for column in columns] for i in range(4))
    apart = np.zeros((p, d, p, d))
    for i, weight in enumerate(second):
        apart[i, :, i] = weight
    one, two, three, four = one_process([
        np.hstack(first), apart.reshape(p * d, p * d), np.hstack(third), np.vstack(last)], x,
        labels)
    return [[one[:, own], two[own, own], three[:, own], four[own]]
            for own in (slice(i * d, (i + 1) * d) for i in range(p))]


def library_stages(comm: Communicator, weights: np.ndarray, x: np.ndarray,
                   labels: np.ndarray) -> list[np.ndarray]:
    """The gradients of the lesson's in_stages, computed by the library's strategy."""
    model = mlp_of(weights)
    numbers = np.array_split(np.arange(len(weights)), comm.size)
    cuts = [int(each[0]) for each in numbers[1:]]
    strategy = NaiveModelParallel(model, comm, cuts)
    strategy.forward_backward([Microbatch(x, labels, np.arange(len(x)))])
    grads = gradients(strategy)
    return [grads[f"{2 * i}.weight"] for i in numbers[comm.rank]]


def library_columns(comm: Communicator, column: list[np.ndarray], x: np.ndarray,
                    labels: np.ndarray) -> list[np.ndarray]:
    """The gradients of the lesson's in_columns, computed by the library's operations."""
    first, second, third, last = layers = [Tensor(w, requires_grad=True) for w in column]
    h = ag.relu(ag.linear(ag.relu(ag.linear(Tensor(x), first)), second))
    h = ag.relu(ag.linear(all_gather(h, comm, 1), third))
    backward(ag.cross_entropy(reduce_from(ag.linear(h, last), comm), labels))
    return [w.grad for w in layers]


class Column(Module):
    """Half of the network."""

    def __init__(self):
        super().__init__()
        self.conv1 = Conv2d(3, CHANNELS, 3)                         # (14, 14, c)
        self.conv2 = Conv2d(CHANNELS, CHANNELS, 3, stride=2)        # (6, 6, c)
        self.conv3 = Conv2d(2 * CHANNELS, CHANNELS, 3)              # (4, 4, c)
        self.fc = Linear(16 * CHANNELS, CLASSES, bias=False)

    def before(self, images: Array) -> Tensor:
        """The layers before the exchange."""
        return ag.relu(self.conv2(ag.relu(self.conv1(Tensor(images)))))

    def after(self, both: Tensor) -> Tensor:
        """This column's summand of the logits."""
        return self.fc(ag.relu(self.conv3(both)).reshape((both.shape[0], -1)))


class TwoColumns(Module):
    """images (b, 16, 16, 3) → logits (b, 10), both columns on one device."""

    def __init__(self):
        super().__init__()
        self.columns = [Column(), Column()]

    def before(self, images: Array) -> Tensor:
        """The layers of both columns before the exchange."""
        return ag.concatenate([column.before(images) for column in self.columns], CHANNEL)

    def after(self, both: Tensor) -> Tensor:
        """The logits."""
        first, second = self.columns
        return first.after(both) + second.after(both)

    def criterion(self, logits: Tensor, labels: Array, loss_divisor: float | None = None) -> Tensor:
        """Cross-entropy, summed and divided by `loss_divisor`."""
        return ag.cross_entropy(logits, labels, loss_divisor)

    def loss(self, images: Array, labels: Array, loss_divisor: float | None = None) -> Tensor:
        """The loss of a batch of images."""
        return self.criterion(self.after(self.before(images)), labels, loss_divisor)


@chain.register
def _(model: TwoColumns) -> list[ChainPart]:
    """Two parts for stages: the layers before the exchange, and those after it."""
    return [ChainPart("before", model.before,
                 [layer for column in model.columns for layer in (column.conv1, column.conv2)]),
            ChainPart("after", model.after,
                 [layer for column in model.columns for layer in (column.conv3, column.fc)])]


def loss_in_columns(model: TwoColumns, images: Array, labels: Array, loss_divisor: float,
                    comm: Communicator) -> Tensor:
    """The same loss with column r on rank r of two; both ranks get it."""
    column = model.columns[comm.rank]
    both = all_gather(column.before(images), comm, CHANNEL)
    return model.criterion(reduce_from(column.after(both), comm), labels, loss_divisor)


def batch_of(rows: int, shape: tuple[int, ...], num_classes: int) -> Microbatch:
    """Random samples; the same on all ranks."""
    draw = np.random.default_rng(0)
    return Microbatch(draw.standard_normal((rows, *shape)), draw.integers(0, num_classes, rows),
                      np.arange(rows))


def mlp(num_ranks: int) -> MLP:
    """LAYERS equal layers for each rank."""
    return MLP([WIDTH] * (num_ranks * LAYERS + 1)).initialize(0, np.float64)


def observe_stages(comm: Communicator, model: Module,
                   batch: Microbatch) -> tuple[NaiveModelParallel, Observed]:
    """Train a batch with the layers in stages, one rank after the other."""
    strategy = NaiveModelParallel(model, comm)
    return strategy, observe(comm, step_of(strategy, [batch]))


def observe_columns(comm: Communicator, batch: Microbatch) -> tuple[TwoColumns, Observed]:
    """Train a batch with one column on each of two ranks."""
    model = TwoColumns().initialize(0, np.float64)

    def step() -> float:
        model.zero_grad()
        loss = loss_in_columns(model, batch.inputs, batch.targets, IMAGES, comm)
        backward(loss)
        return loss.item()
    return model, observe(comm, step)


def stages(lesson: Lesson, comm: Communicator) -> tuple[Observed, Observed | None]:
    """Train an MLP in stages: what was measured, and what is predicted for real ranks."""
    p, batch = comm.size, batch_of(ROWS, (WIDTH,), WIDTH)
    expected_loss, expected = serial(mlp(p), [batch])
    strategy, seen = observe_stages(comm, mlp(p), batch)
    ideal = on_free_links(comm, lambda comm: observe_stages(comm, mlp(p), batch)[1])
    whole, held = mlp(p).num_parameters(), strategy.slabs[0].data.size
    lesson.say(f"An MLP of {p * LAYERS} layers, {LAYERS} on each of {p} ranks, one batch of {ROWS} "
               "samples, float64. The same numbers as on one device:")
    lesson.table([
        Row("loss", expected_loss, seen.loss),
        Row("gradients: largest difference from one process", 1e-12,
            distance(gradients(strategy), expected), "", AT_MOST),
        Row("parameters on all ranks together", whole, round(sum_over_ranks(comm, held)), ""),
        Row("sent: an activation and a gradient over each of p − 1 cuts",
            2 * (p - 1) * ROWS * WIDTH * FLOAT, seen.sent, "B"),
        Row("utilization: at most 1/p, less with messages", 1 / p, seen.busy, "", AT_MOST)],
        "layers on different ranks")
    lesson.say("The memory of p devices, the speed of one. A larger batch does not help: each rank "
               "works longer and waits longer. (Several small batches would help: lesson 12.)")
    return seen, ideal


def cut_both_ways(lesson: Lesson, comm: Communicator) -> dict[str, Trace]:
    """Cut the same small convolutional network both ways on ranks 0 and 1; the others wait."""
    batch = batch_of(IMAGES, (SIZE, SIZE, 3), CLASSES)
    pair = comm.split(0 if comm.rank < 2 else None)
    equal, rows, traces, ideal = [], [], {}, None
    if pair is not None:
        expected_loss, expected = serial(TwoColumns().initialize(0, np.float64), [batch])
        staged, seen_stages = observe_stages(pair, TwoColumns().initialize(0, np.float64), batch)
        model, seen = observe_columns(pair, batch)
        one_waits = on_free_links(pair, lambda comm: observe_stages(
            comm, TwoColumns().initialize(0, np.float64), batch)[1])
        ideal = on_free_links(pair, lambda comm: observe_columns(comm, batch)[1])
        traces = {**traces_by_title("A convolutional network in 2 stages", pair, seen_stages,
                                    one_waits),
                  **traces_by_title("… in 2 columns: both ranks work", pair, seen, ideal)}
        mine = {name: parameter.grad for name, parameter in model.named_parameters()
                if name.startswith(f"columns.{pair.rank}")}
        meeting, logits = IMAGES * int(np.prod(MEETING)) * FLOAT, IMAGES * CLASSES * FLOAT
        equal = [Row("loss", expected_loss, seen.loss),
                 Row("stages: largest difference of a gradient", 1e-12,
                     distance(gradients(staged), expected), "", AT_MOST),
                 Row("columns: largest difference of a gradient", 1e-12, distance(mine, expected),
                     "", AT_MOST)]
        rows = [Row("stages: both columns' channels, there and back", 2 * 2 * meeting,
                    seen_stages.sent, "B"),
                Row("columns: all-gather, its backward; all-reduce of logits",
                    2 * (2 * meeting + logits), seen.sent, "B"),
                Row("stages: utilization", 1 / 2, seen_stages.busy, "", AT_MOST),
                Row("columns: utilization", ideal.busy if ideal else 1.0, seen.busy, "",
                    ABOUT if ideal else AT_MOST)]
    lesson.say("A small network with AlexNet's layout: four layers with convolutions by im2col, "
               "the channels of every layer in two columns, which exchange data before the third "
               "layer and in the logits. On two ranks, cut into stages (the first two layers, the "
               "last two) and into columns:")
    lesson.counts(equal, "Loss and gradients of one process")
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
