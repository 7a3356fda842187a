"""Lesson 21: the library offloads a GPT's activations, states and weights; times on many links."""

import time
from contextlib import nullcontext
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from minipar.autograd import backward
from minipar.backend import allocating_with
from minipar.backend.mapped_file import MappedFile
from minipar.comm import Cluster, Communicator, Trace
from minipar.comm.simulated.copy_stream import copy_streams
from minipar.comm.simulated.links import Link
from minipar.inference import generate
from minipar.launcher import simulate
from minipar.memory.ledger import Ledger
from minipar.memory.offload.activations import OffloadActivations
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW
from minipar.parallel.cost.activations import gpt_activations
from minipar.parallel.zero.fsdp import FullyShardedDataParallel
from minipar.viz import draw_timeline, side_by_side

from .kept_trace import keep
from .kit import Lesson, Row
from .plain_mlp import mlp_of

CONFIG = GPTConfig(vocab_size=64, context=64, num_layers=4, num_heads=4, width=64, tied=False)
BATCH, AHEAD = 8, 6              # arrays in flight in each direction
PSI = GPT(CONFIG).num_parameters()
SAVED = gpt_activations(CONFIG, BATCH)       # bytes that backward needs
# (speed of the link, arrays in flight); at speed 1 copies out take as long as the forward.
LINKS = ((4.0, AHEAD), (1.0, AHEAD), (1.0, 2), (0.5, AHEAD), (0.25, AHEAD))
Phase = tuple[float, float, OffloadActivations | None]  # virtual seconds: forward, backward


class Step(NamedTuple):
    """One step, forward and backward; seconds on this machine's clock."""

    gradient: np.ndarray
    ledger: Ledger
    offload: OffloadActivations
    seconds: float


def batch() -> tuple[np.ndarray, np.ndarray]:
    """Ids and targets (b, t), as separate arrays."""
    return tuple(map(np.copy, np.random.default_rng(0).integers(0, 64, (2, BATCH, CONFIG.context))))


def train(offloads: bool, num_steps: int = 4) -> Step:
    """Train a few steps; return the measurements of the last."""
    model = GPT(CONFIG).initialize()
    offload = OffloadActivations(MappedFile().empty, model.parameters(), ahead=AHEAD, min_bytes=1)
    ledger = Ledger(model.parameters())
    for _ in range(num_steps):
        for slab in model.slabs:
            slab.zero_grad()
        offload.bytes_out = offload.bytes_in = offload.num_late = 0
        begun = time.perf_counter()
        with ledger.recording(), offload.recording() if offloads else nullcontext():
            backward(model.loss(*batch()))
        seconds = time.perf_counter() - begun
    return Step(model.slabs[0].grad.copy(), ledger, offload, seconds)


def phase(comm: Communicator, link: Link | None, ahead: int) -> Phase:
    """Virtual seconds of forward and of backward, which offload over `link` if there is one."""
    model = GPT(CONFIG).initialize()
    offload = OffloadActivations(MappedFile().empty, model.parameters(), *copy_streams(comm, link),
                      ahead=ahead, min_bytes=1) if link else None
    with offload.recording() if offload else nullcontext():
        loss = model.loss(*batch())
        forward = comm.now()
        backward(loss)
    return forward, comm.now() - forward, offload


@cache          # once for all simulated ranks of a process: their times are equal
def on_link(link: Link | None, ahead: int = AHEAD) -> tuple[Phase, Trace]:
    """`phase` on a simulated device, and its trace."""
    cluster = Cluster(1, trace=True, flops_per_second=1e10, memory_bandwidth=1e12)
    (seen,), _ = simulate(partial(phase, link=link, ahead=ahead), cluster)
    return seen, cluster.trace


def compare_with_library(lesson: Lesson, weights: np.ndarray, x: np.ndarray, labels: np.ndarray,
                         found: list) -> None:
    """Compare `found`, the gradients; offload a GPT's arrays; time links of several speeds."""
    comm = lesson.comm
    lesson.say("In the library saved-tensor hooks move each array that an operation saves, of any "
               "model. The same MLP, with arrays that wait in a file:")
    lesson.table([Row("difference from the lesson's gradients", 1e-15, np.abs(np.array(
        library_gradients(weights, x, labels)) - np.array(found)).max(), "", "≤")])
    kept, moved = train(False), train(True)
    assert np.array_equal(kept.gradient, moved.gradient), "not the same, bit for bit"
    lesson.say(f"A GPT of Ψ = {PSI:,} parameters, {BATCH} samples. Saved arrays wait in a mapped "
               "file. Gradients are equal bit for bit.")
    lesson.table([*count_activations(kept, moved), *count_states(comm)])
    traces = compare_times(lesson)
    lesson.say(f"Arrays differ in size, and so do the times between them: {AHEAD} arrays in flight "
               "even that out, 2 do not. (On slow links the last copies out overlap with backward, "
               "so the step takes less than predicted.) On this machine, where the processor "
               f"itself copies, a step with offloading took {1e3 * moved.seconds:.0f} ms, without "
               f"{1e3 * kept.seconds:.0f} ms.")
    lesson.picture(lambda path: draw_timeline(
        path, side_by_side(list(traces.values())), runs=list(traces),
        title="One step: fast links hide the copies, on slow ones the device waits"))


def library_gradients(weights: np.ndarray, x: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """The gradients of an MLP that offloads what it saves."""
    model = mlp_of(weights)
    with OffloadActivations(MappedFile().empty, model.parameters(), ahead=1,
                            min_bytes=1).recording():
        backward(model.loss(x, labels))
    return [model[2 * i].weight.grad for i in range(len(weights))]


def count_activations(kept: Step, moved: Step) -> list[Row]:
    """Rows of the activations of a step that keeps them, and of one that offloads them."""
    return [
        Row("activations at the peak, kept: the formula", SAVED, kept.ledger.peak, "B"),
        Row("  of these offloaded: all", SAVED, moved.offload.bytes_out, "B"),
        Row(f"activations at the peak, offloaded: {AHEAD} of the largest, (b, t, 4d)",
            AHEAD * 4 * BATCH * CONFIG.context * 4 * CONFIG.width, moved.ledger.peak, "B", "≤")]


def count_states(comm: Communicator) -> list[Row]:
    """Rows of optimizer states and of weights that wait in a file."""
    same, peak, units = weights_by_block(comm, CONFIG)
    assert same, "different tokens"
    states_here, states_out = states_in_file(CONFIG)
    return [Row("optimizer states in memory", 0, states_here, "B"),
            Row("  in the file: 8Ψ", 8 * PSI, states_out, "B"),
            Row("weights at the peak of inference: the largest unit, not 4Ψ", max(units), peak,
                "B")]


def compare_times(lesson: Lesson) -> dict[str, Trace]:
    """Compare the time of a step on several links with the formula; return traces by name."""
    (forward, back, _), trace = on_link(None)
    balance = SAVED / forward
    rows, traces = [], {"all kept": keep(trace)}
    for speed, ahead in LINKS:
        (f, b, offload), trace = on_link(Link(0.0, balance * speed), ahead)
        name = f"link {speed:g}" + (f", {ahead} ahead" if ahead != AHEAD else "")
        out, back_in = (n / (balance * speed) for n in (offload.bytes_out, offload.bytes_in))
        rows.append(Row(f"{name}: max(F, out) + max(B, in)",
                        1e3 * (max(forward, out) + max(back, back_in)), 1e3 * (f + b), "ms", "≈"))
        traces[name] = keep(trace)
    lesson.say(f"In virtual time forward takes {1e3 * forward:.0f} ms, backward {1e3 * back:.0f} "
               "ms. A link of speed 1 copies all activations in the time of the forward.")
    lesson.table(rows, "one step", "simulated")
    return traces


def weights_by_block(comm: Communicator, config: GPTConfig) -> tuple[bool, int, list[int]]:
    """(whether a model in a file generates the same, bytes of weights at the peak, of units)."""
    prompt, ledger, zeros = np.arange(5), Ledger(), MappedFile().zeros
    expected = list(generate(GPT(config).initialize(), prompt, 3))
    with ledger.recording(), allocating_with(dict.fromkeys(("parameters", "gradients"), zeros)):
        model = GPT(config).initialize()
        strategy = FullyShardedDataParallel(model, comm.split(comm.rank))   # alone: no messages
        same = list(generate(model, prompt, 3)) == expected
    return (same, ledger.peak - ledger.peak_of["KV cache"],     # the cache is there all the time
            [sum(piece.nbytes for piece in unit.pieces) for unit in strategy.units])


def states_in_file(config: GPTConfig) -> tuple[int, int]:
    """Bytes of AdamW's states in memory, and in the file."""
    ledger, file = Ledger(), MappedFile()
    with ledger.recording(), allocating_with({"optimizer states": file.zeros}):
        optimizer = AdamW(GPT(config).initialize().slabs)
        optimizer.step()
    return ledger.live_of["optimizer states"], ledger.live_of["offloaded"]
