"""Lesson 10. FSDP: when to gather, when to free?

Parameters, gradients and optimizer states are all sharded: 16 Ψ/p bytes on each rank.  A weight is
gathered before its use (*unshard*) and freed after it (*reshard*).  The *unit* decides how much is
gathered at a time: the unit in use and the next, prefetched one are whole, all others are shards.
(▓ and ▒ tell neighbouring units apart.)

    units      embed h.0  h.1  h.2  head │ h.2  h.1  h.0          unshard each before its use,
    gathered   ▓▓▓▓▓ ▒▒▒▒ ▓▓▓▓ ▒▒▒▒ ▓▓▓▓ │ ▒▒▒▒ ▓▓▓▓ ▒▒▒▒         reshard it after
               forward                   │ backward, reduce-scatters each gradient

Weights are gathered twice and gradients reduced once: up to 3 Ψ (p-1)/p elements, where DDP sends
2 Ψ (p-1)/p.  With enough memory, keep what forward gathered (reshard_after_forward=False) and send
no more than DDP.

    python lessons/10_fsdp.py          mpirun -n 4 python lessons/10_fsdp.py
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from support.kit import Lesson, Row, number
from support.observed_step import STATES, RingWire, Step, observe

from minipar.comm import Communicator
from minipar.formulas.data_parallel import bytes_per_step, memory_per_rank, paper_bytes, units_of
from minipar.launcher import launch
from minipar.nn import GPT, GPTConfig, Module
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.zero.fsdp import FullyShardedDataParallel
from minipar.viz.memory_timeline import draw_memory_timeline

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


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
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
    lesson.takeaway("Gather a unit just before its use, prefetch the next one meanwhile, free it "
                    "just after: memory 16 Ψ/p plus two units, for 1.5 times the traffic of DDP.")
    lesson.exercises("fsdp_reshard_others", "fsdp_predict_next", questions=[
        "Set tied=True in CONFIG: 3,072 parameters fewer. Why is the peak by part higher now?",
        "Without prefetch the peak is the same. Why? What would be lost if it were lower?",
        "From which p on do two gathered blocks outweigh the shards, 16 Ψ/p?",
        "Where would you use reshard_after_forward=False: for every block, or for the last?"])


def predicted_peak(wrapping: Wrapping, comm: Communicator) -> int:
    """The most bytes that this rank has in a step, without activations."""
    return sum(memory_per_rank("fsdp", wrapping.sizes, comm.size, comm.rank, uses=wrapping.uses,
                               kept=wrapping.kept).values())


def compare_peaks(lesson: Lesson, steps: dict[str, Step]) -> None:
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
    pictures = [steps[name].memory._replace(title=name, predicted=(
        predicted_peak(wrapping, lesson.comm), f"16Ψ/p + {wrapping.formula}"))
        for name, wrapping in WRAPPINGS.items()]
    lesson.picture(lambda path: draw_memory_timeline(
        path, pictures[:-1], f"FSDP: one step of a GPT on {lesson.comm.size} ranks, rank 0, "
        "without activations", STATES, PSI))


if __name__ == "__main__":
    launch(main)
