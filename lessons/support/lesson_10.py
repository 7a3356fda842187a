"""Lesson 10: the library's FSDP with a GPT, in units of several sizes; memory, bytes, picture."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minipar.comm import Communicator
from minipar.nn import GPT, GPTConfig, Module
from minipar.parallel.cost.data_parallel import (
    bytes_per_step,
    memory_per_rank,
    paper_bytes,
    units_of,
)
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Microbatch
from minipar.parallel.zero.fsdp import FullyShardedDataParallel
from minipar.viz import draw_memory_timeline

from .kit import Lesson, Row, number
from .observed_step import STATES, RingWire, Step, observe
from .plain_mlp import mlp_of

CONFIG = GPTConfig(vocab_size=64, context=32, num_layers=6, num_heads=4, width=48, tied=False)


class Wrapping(NamedTuple):
    """A way to divide the model into units, and its predicted peak."""

    options: Callable[[GPT], dict[str, Any]]        # of FullyShardedDataParallel
    sizes: Sequence[int]            # parameters of each unit
    uses: Sequence[int]             # the numbers of the units, in the order forward uses them
    formula: str                    # of the peak, beside the shards' 16Ψ/p
    kept: bool = False              # forward's units stay unsharded until backward

    def make(self, model: GPT, comm: Communicator) -> FullyShardedDataParallel:
        """Shard `model` in these units."""
        return FullyShardedDataParallel(model, comm, **self.options(model))


def halves(model: GPT) -> list[Module]:
    """Modules whose units are half a block each: a block without its MLP, and the MLP."""
    return [*model.h, *(block.mlp for block in model.h)]


def units_of_halves(model: GPT) -> tuple[list[int], list[int]]:
    """The sizes of the units [rest, half, half, …], and the order in which forward uses them."""
    sizes = [size for block in model.h for size in (
        block.num_parameters() - block.mlp.num_parameters(), block.mlp.num_parameters())]
    return [model.num_parameters() - sum(sizes), *sizes], [*range(len(sizes) + 1), 0]


MODEL = GPT(CONFIG)
PSI = MODEL.num_parameters()
PARTS = units_of(MODEL)
WRAPPINGS = {
    "one unit": Wrapping(lambda model: {"units": [model]}, [PSI], [0],
                         "all gathered, all gradients"),
    "by part": Wrapping(lambda model: {}, *PARTS, "2 blocks + gradient of block"),
    "by half block": Wrapping(lambda model: {"units": halves(model)}, *units_of_halves(MODEL),
                              "2 halves + gradient of half, rest"),
    "by part, kept": Wrapping(lambda model: {"reshard_after_forward": False}, *PARTS,
                              "all gathered + gradient of block", kept=True),
    "by part, no prefetch": Wrapping(lambda model: {"prefetch": False}, *PARTS,
                                     "2 blocks + gradient of block"),
}


def compare_with_library(lesson: Lesson, weights: np.ndarray, x: np.ndarray, labels: np.ndarray,
                         found: list) -> None:
    """Compare `found`, the gradients of this rank's shards; measure a GPT in several units."""
    comm = lesson.comm
    lesson.say("The library finds out by itself which unit comes next: from the order in which the "
               "step before used them. On the same weights and samples:")
    right = library_gradients(comm, weights, x, labels)
    lesson.table([Row("difference from the lesson's gradients", 1e-14, max(
        np.abs(np.array_split(whole.reshape(-1), comm.size)[comm.rank] - mine).max(initial=0)
        for whole, mine in zip(right, found, strict=True)), "", "≤")])
    ddp = observe(comm, CONFIG, lambda model, comm: DistributedDataParallel(
        model, comm, 0.1, 0.1, wire=RingWire()))
    steps = {name: observe(comm, CONFIG, wrapping.make) for name, wrapping in WRAPPINGS.items()}
    lesson.say(f"A GPT of Ψ = {PSI:,} parameters, float32, AdamW, p = {comm.size} ranks. Each part "
               "of its chain is a unit: the embeddings, each of "
               f"{len(MODEL.h)} blocks of {MODEL.h[0].num_parameters():,}, the last norm with the "
               "head. Parts that share a weight are one unit. `units=[…]` names other modules: the "
               "parameters of each are a unit, and all that are in none are one more, the *rest*.")
    compare_peaks(lesson, steps)
    compare_bytes(lesson, steps, ddp)
    show_run(lesson, {"DDP": ddp, **steps})
    draw(lesson, steps)


def library_gradients(comm: Communicator, weights: np.ndarray, x: np.ndarray, labels: np.ndarray
                      ) -> list[np.ndarray]:
    """Collective.  The gradients of all weights by FSDP, from this rank's rows."""
    model = mlp_of(weights)
    strategy = FullyShardedDataParallel(model, comm)
    strategy.forward_backward([Microbatch(x, labels, np.arange(len(x)))])
    grads = strategy.slabs.gradients()
    return [grads[f"{2 * i}.weight"] for i in range(len(weights))]


def predicted_peak(wrapping: Wrapping, comm: Communicator) -> int:
    """The most bytes that this rank has in a step, without activations."""
    return sum(memory_per_rank("fsdp", wrapping.sizes, comm.size, comm.rank, uses=wrapping.uses,
                               kept=wrapping.kept).values())


def compare_peaks(lesson: Lesson, steps: dict[str, Step]) -> None:
    """The most memory of a step, for each way to make units."""
    lesson.table([Row(f"{name}: 16Ψ/p + {wrapping.formula}",
                      predicted_peak(wrapping, lesson.comm), steps[name].peak, "B")
                  for name, wrapping in WRAPPINGS.items()],
                 "peak on this rank, without activations")
    lesson.say("The finer the units, the lower the peak. Two things are easily forgotten. With "
               "*one* unit all weights are gathered at once, and only the optimizer states stay "
               "small. And where the head is in one unit with the embeddings, as in the *rest* "
               "beside half blocks, its gradient stays in memory during all of backward: its first "
               "part is the head's, its last part the embeddings'.")


def compare_bytes(lesson: Lesson, steps: dict[str, Step], ddp: Step) -> None:
    """Bytes sent in a step, for each way to make units."""
    p = lesson.comm.size
    lesson.table([
        *(Row(name, sum(bytes_per_step("fsdp", sizes, p, uses=uses, kept=kept)), steps[name].sent,
              "B") for name, (_, sizes, uses, _, kept) in WRAPPINGS.items()),
        Row("the paper: at most 3 Ψ (p−1)", round(p * paper_bytes("fsdp", PSI, p)),
            steps["by part"].sent, "B", "≤"),
        Row("DDP: 2 Ψ (p−1)", round(p * paper_bytes("ddp", PSI, p)), ddp.sent, "B"),
    ], "sent by all ranks in one step")
    lesson.say("This is less than the paper's 3 Ψ: when backward begins, the head and the last "
               "block are still unsharded, and embeddings need no weight for their gradient. It is "
               "nearly 1.5 times what DDP sends. Prefetching the next unit lets this traffic "
               "overlap with computation: compare the times with and without prefetch.")


def show_run(lesson: Lesson, steps: dict[str, Step]) -> None:
    """This run's memory, traffic and time, in multiples of Ψ."""
    lesson.grid(["in this run, per rank", "kept", "peak", "sent", f"ms a step, {lesson.clock}",
                 "÷ DDP"],
                [(name, *(f"{number(round(count / PSI / size, 2))} Ψ" for count, size in (
                    (step.kept, 1), (step.peak, 1), (step.sent, 4 * lesson.comm.size))),
                  f"{1e3 * step.seconds:.2f}", f"{step.seconds / steps['DDP'].seconds:.2f}")
                 for name, step in steps.items()])
    lesson.say("The picture of *by part* is not a sawtooth but a **plateau**: whenever one block "
               "is freed, another is gathered, so two are always in memory. Units of "
               "unequal sizes, such as the halves of a block, make steps in it.")


def draw(lesson: Lesson, steps: dict[str, Step]) -> None:
    """Draw the memory of a step, for each way to make units."""
    pictures = [steps[name].memory._replace(title=name, predicted=(
        predicted_peak(wrapping, lesson.comm), f"16Ψ/p + {wrapping.formula}"))
        for name, wrapping in WRAPPINGS.items()]
    lesson.picture(lambda path: draw_memory_timeline(
        path, pictures[:-1], f"FSDP: one step of a GPT on {lesson.comm.size} ranks, rank 0, "
        "without activations", STATES, PSI))
