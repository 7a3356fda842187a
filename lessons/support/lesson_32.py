"""Lesson 32: the library's PipeDream and 2BW; time of a stream, late training of an MLP, picture.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import LogLocator

from minipar.comm import Cluster, Communicator
from minipar.comm.collectives import gather_object
from minipar.comm.mesh import DeviceMesh
from minipar.data import Batches, digits
from minipar.launcher import simulate
from minipar.nn import MLP, Linear, Sequential
from minipar.optim import SGD
from minipar.parallel.pipeline.late_weights.pipedream_by_versions import PipeDreamByVersions
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.viz.colors import BLACK, BLUE, DARK, MANY, RED
from minipar.viz.figure import label_at, new_panels, save, whole_numbers

from .kit import ABOUT, Lesson, Row

KINDS = {               # strategy, options by number of ranks, versions kept on rank s of p
    "PipeDream": ("pipedream", lambda p: {}, lambda p, s: p - s),
    "2BW": ("two_bw", lambda p: {"microbatches_per_step": p}, lambda p, s: 2),
    "vertical sync": ("pipedream", lambda p: {"vertical_sync": True}, lambda p, s: p)}
STREAM, STAGES, WIDTH, ROWS = 32, 4, 32, 32     # of the timed runs: microbatches, stages; samples
DATA, SIZES, BATCH, STEPS, SEEDS = digits(), [64, 32, 10], 32, 80, (0, 1, 2)
DELAYS, RATES, FACTORS = (0, 1, 3, 7), tuple(0.08 * 2**k for k in range(5)), (0.7, 0.9, 1.1, 1.3)
GUESSING = np.log(10)           # the loss of a model that knows nothing of ten digits


class PlainMLP(MLP):
    """An MLP without biases, as micro's, with these weights (p, width, width)."""

    def __init__(self, weights: np.ndarray):
        super().__init__([len(weights[0])] * (len(weights) + 1))
        for i, weight in enumerate(weights):
            setattr(self, str(2 * i), Linear(*weight.shape, bias=False))
        self.initialize(0, np.float64)
        for i, weight in enumerate(weights):
            self[2 * i].weight.data[...] = weight


def compare_with_library(lesson: Lesson, weights: np.ndarray, x: np.ndarray, labels: np.ndarray,
                         found: Sequence[np.ndarray], late_sgd: Callable) -> None:
    """Compare `found`, this rank's layer by each kind; time streams, train late, and draw."""
    comm, p, s = lesson.comm, lesson.comm.size, lesson.comm.rank
    rows = []
    for (name, (_, _, kept)), mine in zip(KINDS.items(), found, strict=True):
        layer, most = library_layer(comm, name, weights, x, labels)
        rows += [Row(f"{name}: difference from the lesson's weight", 1e-12,
                     np.abs(layer - mine).max(), "", "≤"),
                 Row(f"    versions kept on rank {s}", kept(p, s), most)]
    lesson.say("The library's strategies do the same with stages of any model and any optimizer. "
               "They keep a version only while a microbatch needs it:")
    lesson.table(rows)
    show_times(lesson)
    losses = train_late(comm)
    lesson.say(f"An MLP learns digits by SGD without momentum, with {STEPS} batches of {BATCH}; "
               f"all its gradients are D steps old. The loss on all training images at the end, of "
               f"{len(SEEDS)} seeds the worst:")
    lesson.grid(["learning rate", *(f"D = {delay}" for delay in DELAYS)], [
        (f"{rate:g}", *(in_words(max(losses[delay, seed][i] for seed in SEEDS))
                        for delay in DELAYS)) for i, rate in enumerate(RATES) if losses])
    lesson.say("The largest useful rate falls about as the limit does. Below it, too, late "
               "gradients cost something: compare a row. The picture does not say more than that. "
               "A quadratic has one curvature; a network has many, which change as it trains. In "
               "PipeDream only the first stage is D steps late, so only its rate has to be so "
               "small. There is no momentum here, with which the limit falls further. The model is "
               f"a toy, and {STEPS} steps are the beginning of a run.")
    lesson.picture(lambda path: draw(path, late_sgd, losses))


def library_layer(comm: Communicator, name: str, weights: np.ndarray, x: np.ndarray,
                  labels: np.ndarray) -> tuple[np.ndarray, int]:
    """Collective.  This rank's layer after a stream, and the most versions that it kept."""
    kind, options, _ = KINDS[name]
    strategy = make_strategy(kind, PlainMLP(weights), DeviceMesh(comm, pp=comm.size),
                             **options(comm.size))
    strategy.optimizer, step, most = SGD(strategy.slabs, 0.5), strategy.step_stage, []

    def counted(k: int) -> None:
        step(k)
        most.append(len(strategy.versions))
    strategy.step_stage = counted
    rows = np.arange(x.shape[1])
    strategy.forward_backward([Microbatch(*each, rows) for each in zip(x, labels)])
    return strategy.slabs[0].data.reshape(weights[0].shape), max(most)


def library_averaging(comm: Communicator, gradient: Callable, w: np.ndarray, delay: int,
                      steps: int) -> np.ndarray:
    """Collective.  What ranks agree on after delayed averaging, starting from w (n,)."""
    model = Sequential(Linear(len(w), 1, bias=False)).initialize(0, np.float64)
    model[0].weight.data[...] = w[:, None]
    strategy = make_strategy("delayed", model, comm, delay=delay)
    optimizer = SGD(strategy.slabs, 0.5)
    for t in range(steps):
        optimizer.zero_grad()
        strategy.slabs[0].complete_grad()[...] = gradient(strategy.slabs[0].data, t)
        strategy.update(optimizer)
    return strategy.consensus()[0]


def show_times(lesson: Lesson) -> None:
    """Virtual time of a stream, and of 1F1B that is drained after each p microbatches."""
    p, n = STAGES, STREAM
    seconds = {name: seconds_of(name) for name in ("1f1b", "PipeDream", "2BW")} \
        if lesson.comm.rank == 0 else {}
    lesson.say(f"The gain: {n} microbatches on {p} simulated stages, with a step after each "
               f"{p}. 1F1B has its bubble n/p times, a stream has it once (if all stages "
               "take equally long, and messages no time):")
    lesson.table([Row(f"1F1B, over {name}: n/p (2p − 1)/(n + p − 1)",
                      n / p * (2 * p - 1) / (n + p - 1), seconds["1f1b"] / seconds[name], "", ABOUT)
                  for name in KINDS if name in seconds], "virtual time", "simulated")


def seconds_of(name: str) -> float:
    """Virtual seconds of STREAM microbatches on STAGES stages of an MLP."""
    draw = np.random.default_rng(0)
    batches = [Microbatch(draw.standard_normal((ROWS, WIDTH)), draw.integers(0, WIDTH, ROWS),
                          np.arange(ROWS)) for _ in range(STREAM)]

    def body(comm: Communicator) -> float:
        kind, options, _ = KINDS.get(name, ("ddp", lambda p: {"schedule": "1f1b"}, None))
        strategy = make_strategy(kind, MLP([WIDTH] * (STAGES + 1)).initialize(0, np.float64),
                                 DeviceMesh(comm, pp=STAGES), **options(STAGES))
        optimizer = strategy.optimizer = SGD(strategy.slabs, 0.01)
        number, begun = STREAM if kind in ("pipedream", "two_bw") else STAGES, comm.now()
        for i in range(0, STREAM, number):
            optimizer.zero_grad()
            strategy.forward_backward(batches[i:i + number])
            strategy.step(optimizer)
        return comm.now() - begun
    return max(simulate(body, Cluster(STAGES, latency=1e-7, bandwidth=1e12))[0])


def train_late(comm: Communicator) -> dict[tuple[int, int], list[float]]:
    """Collective.  On rank 0 by delay and seed the losses at all RATES; {} on others."""
    runs = [(delay, seed) for delay in DELAYS for seed in SEEDS]
    parts = gather_object(comm, [[loss_after(*run, rate) for rate in RATES]
                                 for run in runs[comm.rank::comm.size]])    # ranks share the work
    return {} if parts is None else {run: parts[i % comm.size][i // comm.size]
                                     for i, run in enumerate(runs)}


def loss_after(delay: int, seed: int, rate: float) -> float:
    """The loss of an MLP on all training images, after training by late gradients."""
    x = DATA.train_x.astype(np.float64)

    def body(comm: Communicator) -> float:
        model, batches = MLP(SIZES).initialize(seed, np.float64), Batches(x, DATA.train_y, BATCH,
                                                                          seed)
        strategy = PipeDreamByVersions(model, comm, 1, lambda t, stage: max(0, t - delay))
        strategy.optimizer = SGD(strategy.slabs, rate)
        with np.errstate(all="ignore"):         # some runs diverge: that is what is asked
            strategy.forward_backward([batches.batch(t) for t in range(STEPS)])
            return float(np.nan_to_num(model.loss(x, DATA.train_y).data, nan=np.inf))
    return Cluster(1).run(body)[0][0]


def in_words(loss: float) -> str:
    """A loss; a dash if it is no better than guessing."""
    return f"{loss:.2f}" if loss < GUESSING else "–"


def limit(delay: float) -> float:
    """The largest stable rate times curvature."""
    return 2 * np.sin(np.pi / (4 * delay + 2))


def draw(path: Path, late_sgd: Callable, losses: dict[tuple[int, int], list[float]]
         ) -> Path:
    """The limit with runs of a quadratic around it; the MLP's loss by rate and delay."""
    figure, [[left, right]] = new_panels(11, 4.2, "Late gradients want small steps", columns=2)
    line = np.linspace(0, 7, 200)
    left.plot(line, limit(line), color=BLACK, label="2 sin(π / (4D + 2))")
    runs = [(delay, factor * limit(delay)) for delay in range(8) for factor in FACTORS]
    for name, color, marker, wanted in (("a run that settles", BLUE, "o", False),
                                        ("a run that grows", RED, "x", True)):
        left.plot(*zip(*[run for run in runs if grows(late_sgd, *run) == wanted]), marker,
                  color=color, label=name, linestyle="")
    left.set_yscale("log")
    left.set(xlabel="delay D in steps", ylabel="rate · curvature")
    whole_numbers(left.xaxis)
    left.legend(frameon=False)
    left.set_title("a quadratic", loc="left", fontsize=10)
    for (delay, seed), row in losses.items():
        end = 1 + next((i for i, loss in enumerate(row) if loss >= GUESSING), len(row))
        right.plot(RATES[:end], np.minimum(row[:end], 3), color=MANY[DELAYS.index(delay)],
                   linewidth=1, marker=".", label="" if seed else f"D = {delay}")
    right.set_xscale("log")
    right.axhline(GUESSING, color=DARK, linestyle=":", linewidth=1)
    right.set(xlabel="learning rate", ylabel=f"loss after {STEPS} steps", ylim=(0, 2.5))
    right.set_title(f"an MLP learns digits, {len(SEEDS)} seeds; dotted: it only guesses",
                    loc="left", fontsize=10)
    right.legend(frameon=False, loc="lower left")
    for axis in (left.yaxis, right.xaxis):
        label_at(axis, LogLocator(subs=(1, 2, 5)))
    return save(figure, path)


def grows(late_sgd: Callable, delay: int, rate: float, steps: int = 300) -> bool:
    """True if such a run of w²/2 is larger at its end than soon after its beginning."""
    w = np.abs(late_sgd(lambda w, t: w, np.ones(1), [delay], steps, rate)[:, 0])
    return bool(w[-30:].max() > w[40:70].max())
