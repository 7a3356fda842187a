"""Lesson 31: the library's wires and DiLoCo; an MLP on two nodes with a slow link; picture."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import gather_object
from minipar.comm.simulated.links import Link, Links
from minipar.data import Batches, digits
from minipar.launcher import simulate
from minipar.nn import MLP, Linear, Sequential
from minipar.optim import SGD
from minipar.parallel.registry import make_strategy
from minipar.parallel.wire_formats.gradient_compression.powersgd import PowerSGD
from minipar.parallel.wire_formats.gradient_compression.signs import Signs
from minipar.parallel.wire_formats.gradient_compression.tensor_wire import TensorWire
from minipar.parallel.wire_formats.gradient_compression.top_k import DGC
from minipar.viz import CostedRun, draw_loss_by_cost

from .kit import ABOUT, Lesson, Row

SIZES, BATCH, STEPS, SEEDS, LAST, GOAL = [64, 128, 128, 10], 32, 48, (0, 1, 2), 15, 0.7
H, RANK, DENSITY, NODES, PER_NODE = 8, 2, 0.02, 2, 2
WITHIN, BETWEEN = Link(5e-6, 1e10), Link(1e-4, 12.5e6)      # between the nodes 100 Mbit/s
DATA = digits()


class Method(NamedTuple):
    """A strategy, its learning rate and options; a wire, if it is DDP's; the optimizer's momentum.
    """

    strategy: str
    lr: float
    options: dict[str, Any] = {}
    wire: Callable[[], TensorWire] | None = None
    momentum: float = 0.9


DENSE = "all gradients (DDP)"
METHODS = {             # of the rates 0.0125, 0.025, 0.05, 0.1 that with the least loss at the end
    DENSE: Method("ddp", 0.05),
    f"DGC, {100 * DENSITY:g} %": Method("ddp", 0.1, wire=partial(DGC, DENSITY), momentum=0.0),
    f"PowerSGD, rank {RANK}": Method("ddp", 0.05, wire=partial(PowerSGD, RANK, start=0)),
    "signs": Method("ddp", 0.025, wire=Signs),
    f"local SGD, H = {H}": Method("local_sgd", 0.025, {"every": H}),
    f"DiLoCo, H = {H}": Method("diloco", 0.025, {"every": H}),
}


def compare_with_library(lesson: Lesson, dgc: Callable, power_sgd: Callable, signs: Callable,
                         diloco: Callable) -> None:
    """The same sums by the library, three times in a row; then each method trains an MLP."""
    compare_values(lesson, dgc, power_sgd, signs, diloco)
    runs = train_all(lesson.comm)
    lesson.say(f"An MLP of {MLP(SIZES).num_parameters():,} parameters in float32 learns digits on "
               f"{NODES} simulated nodes of {PER_NODE} ranks with 100 Mbit/s and 0.1 ms between "
               f"them, {BATCH} images a step, for {STEPS} steps. What a rank sends in a step:")
    lesson.table([Row(name, num_bytes, runs[name][0].num_bytes[-1] / STEPS, "B", ABOUT)
                  for name, num_bytes in predicted_bytes().items() if runs],
                 "bytes, by the formulas for rings", "counted")
    lesson.say("Short sums go by doubling, with fewer messages and more bytes. DGC and PowerSGD "
               "send vectors in full. The dense sum goes in two levels (lesson 04), so that only a "
               "third of its bytes cross the slow link. In each step the ranks also sum the loss, "
               "which costs latency: more than half of a step of local SGD. All methods have "
               f"momentum. The loss is the mean of {LAST} steps, with its range over {len(SEEDS)} "
               "seeds; the last column says when this mean is small enough.")
    lesson.grid(["virtual time", "ms a step", "÷ DDP", f"loss after {STEPS} steps",
                 f"s to a loss of {GOAL:g}"], [summary(runs, name) for name in runs])
    lesson.say("Neither table nor picture says this: each method has the best of four learning "
               "rates and no other tuning. The outer rate and momentum, density, rank and H are "
               f"one choice of many. The model is a toy, and {STEPS} steps are the beginning of a "
               f"run, with {STEPS // H} outer steps. Sorting and QR take no virtual time. In a "
               "larger model the dense sum takes a larger share of a step, so all methods gain "
               "more; with more ranks DGC gains less.")
    lesson.picture(lambda path: draw_loss_by_cost(
        path, {f"{len(SEEDS)} seeds each": runs},
        "An MLP on two nodes with 100 Mbit/s between them"))


def train_all(comm: Communicator) -> dict[str, list[CostedRun]]:
    """Collective.  On rank 0 the runs of all seeds, by method; {} on others.

    Each rank simulates some of them.
    """
    jobs = [(name, seed) for name in METHODS for seed in SEEDS]
    mine = [train(METHODS[name], seed) for name, seed in jobs[comm.rank::comm.size]]
    parts = gather_object(comm, mine)
    return {} if parts is None else {name: [CostedRun(*parts[i % comm.size][i // comm.size])
                                            for i, job in enumerate(jobs) if job[0] == name]
                                     for name in METHODS}


def compare_values(lesson: Lesson, dgc: Callable, power_sgd: Callable, signs: Callable,
                   diloco: Callable) -> None:
    """Three steps of each by the lesson and by the library, on the ranks of this run."""
    comm, p = lesson.comm, lesson.comm.size
    draw = np.random.default_rng(comm.rank)
    grads = draw.standard_normal((3, 8 * p, 8))
    zeros, flat = partial(np.zeros, grads[0].shape), grads.reshape(3, -1)
    u, v, error, q = zeros(), zeros(), zeros(), first_q(grads[0].shape, 2)
    flat_error, owner_error = np.zeros(64 * p), np.zeros(64)
    pairs = {
        "DGC": ([dgc(comm, g, u, v, 4 * p, 0.9) for g in grads],
                library_sums(comm, DGC(1 / 16), grads)),
        "PowerSGD": ([power_sgd(comm, g, error, q) for g in grads],
                     library_sums(comm, PowerSGD(2, start=0, min_rate=0), grads)),
        "signs": ([signs(comm, g, flat_error, owner_error) for g in flat],
                  library_sums(comm, Signs(), flat)),
        "DiLoCo": (own_outer_steps(comm, diloco, grads), library_outer_steps(comm, grads))}
    lesson.say("The library sums the gradients of a model this way, tensor by tensor. On this "
               "run's ranks, three times in a row, with what was remembered:")
    lesson.table([Row(f"{name}: difference from the lesson's", 1e-12,
                      max(np.abs(a - b).max() for a, b in zip(*pair, strict=True)), "", "≤")
                  for name, pair in pairs.items()])


def first_q(shape: tuple[int, ...], rank: int) -> np.ndarray:
    """The Q with which the library begins for a matrix of this shape."""
    return PowerSGD(rank).first_q("w", 0, (shape[1], rank))


def library_sums(comm: Communicator, wire: TensorWire, gradients: Sequence[np.ndarray]) -> list:
    """Collective.  What a wire makes of one gradient after the other of a tensor."""
    found = []
    for step, gradient in enumerate(gradients):
        sums, kept = wire.combine(comm, {"w": gradient.copy()}, step)
        wire.kept |= kept
        found.append(sums["w"])
    return found


def own_outer_steps(comm: Communicator, diloco: Callable, gradients: Sequence[np.ndarray]) -> list:
    """Collective.  w after each outer step, if before each a rank takes one along its gradient."""
    w, found = np.zeros_like(gradients[0]), []
    theta, velocity = w.copy(), w.copy()
    for gradient in gradients:
        w -= 0.1 * gradient
        diloco(comm, w, theta, velocity)
        found.append(w.copy())
    return found


def library_outer_steps(comm: Communicator, gradients: Sequence[np.ndarray]) -> list:
    """Collective.  The same by the library's strategy, on a linear layer."""
    model = Sequential(Linear(*gradients[0].shape, bias=False)).initialize(0, np.float64)
    model[0].weight.data[...] = 0
    strategy, found = make_strategy("diloco", model, comm, every=1), []
    optimizer = SGD(strategy.slabs, 0.1)
    for gradient in gradients:
        strategy.slabs[0].complete_grad()[...] = gradient.ravel()
        strategy.update(optimizer)
        found.append(model[0].weight.data.copy())
    return found


def train(method: Method, seed: int) -> CostedRun:
    """Train an MLP on two simulated nodes; seconds are virtual, bytes count one rank's."""
    def body(comm: Communicator) -> CostedRun:
        model = MLP(SIZES).initialize(seed, np.float32)
        options = method.options | ({"wire": method.wire()} if method.wire else {})
        strategy = make_strategy(method.strategy, model, comm, **options)
        optimizer = SGD(strategy.slabs, method.lr, momentum=method.momentum)
        batches = Batches(DATA.train_x, DATA.train_y, BATCH, seed)
        losses, seconds, num_bytes = [], [], [0]
        for step in range(STEPS):
            optimizer.zero_grad()
            comm.start_trace()
            losses.append(float(strategy.forward_backward(
                [batches.batch(step).select(strategy.rows(BATCH))], step=step)))
            strategy.step(optimizer)
            num_bytes.append(num_bytes[-1] + comm.stop_trace().bytes_sent(comm.rank))
            seconds.append(comm.now())
        return CostedRun(losses, seconds, num_bytes[1:])
    return simulate(body, Cluster(nodes=NODES, devices_per_node=PER_NODE,
                                  links=Links(WITHIN, BETWEEN)))[0][0]


def predicted_bytes() -> dict[str, float]:
    """The mean bytes of a rank in a step, by method, if dense sums go round a ring."""
    p, shapes = NODES * PER_NODE, [*zip(SIZES, SIZES[1:])]
    weights, biases = [n * m for n, m in shapes], sum(SIZES[1:])
    ring, dense = 2 * (p - 1) / p, sum(weights) + biases
    k = sum(-(-round(DENSITY * n * 100) // 100) for n in weights)
    factors = sum(RANK * (n + m) for n, m in shapes)
    return dict(zip(METHODS, (
        ring * dense * 4, (p - 1) * k * 8 + ring * biases * 4, ring * (factors + biases) * 4,
        ring * dense / 8 + 2 * (p - 1) * 4, ring * dense * 4 / H, ring * dense * 4 / H)))


def summary(runs: dict[str, list[CostedRun]], name: str) -> tuple[str, ...]:
    """A row of the table: time of a step, loss at the end, time to a loss."""
    step, dense = (runs[each][0].seconds[-1] / STEPS for each in (name, DENSE))
    means = [np.convolve(run.losses, np.ones(LAST) / LAST, "valid") for run in runs[name]]
    ends = [mean[-1] for mean in means]
    reached = [(LAST + int(np.argmax(mean <= GOAL))) * step for mean in means
               if mean.min() <= GOAL]
    return (name, f"{1e3 * step:.2f}", f"{step / dense:.2f}",
            f"{np.mean(ends):.2f} ({min(ends):.2f} to {max(ends):.2f})",
            f"{np.mean(reached):.3f}" if len(reached) == len(means) else "–")
