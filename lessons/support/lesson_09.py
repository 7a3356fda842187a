"""Lesson 09: the library's ZeRO-1, 2 and 3 with a GPT; memory, messages, times, picture."""

import numpy as np

from minipar.comm import Communicator
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW
from minipar.parallel.cost.data_parallel import paper_bytes
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.parallel.zero.fsdp import ZeRO3
from minipar.parallel.zero.zero1 import ZeRO1
from minipar.parallel.zero.zero2 import ZeRO2
from minipar.viz import draw_memory_timeline

from .kit import Lesson, Row, number
from .measuring import total
from .observed_step import STATES, RingWire, Step, observe
from .plain_mlp import mlp_of

CONFIG = GPTConfig(vocab_size=64, context=32, num_layers=4, num_heads=4, width=48, tied=False)
BUCKET_MB, M = 0.1, 3           # megabytes of a bucket of gradients; microbatches
STRATEGIES = {
    "DDP": lambda model, comm: DistributedDataParallel(
        model, comm, BUCKET_MB, BUCKET_MB, wire=RingWire()),
    "ZeRO-1": lambda model, comm: ZeRO1(model, comm, BUCKET_MB, BUCKET_MB),
    "ZeRO-2": lambda model, comm: ZeRO2(model, comm, BUCKET_MB, BUCKET_MB),
    "ZeRO-3": ZeRO3,
}
# Bytes with AdamW, × Ψ: (replicated on every rank, sharded over the ranks).  In float32 parameters
# need 4, gradients 4, states 8; in the paper's mixed precision 2, 2, and 12 with a master copy.
KEPT = {"DDP": (16, 0), "ZeRO-1": (8, 8), "ZeRO-2": (4, 12), "ZeRO-3": (0, 16)}
PAPER = {"DDP": (16, 0), "ZeRO-1": (4, 12), "ZeRO-2": (2, 14), "ZeRO-3": (0, 16)}
LARGE, MANY = 7.5e9, 64         # parameters and ranks of the paper's figure 1
Steps = dict[str, Step]


def passing(name: str, step: Step) -> int:
    """Bytes allocated only during a step: a bucket; an MLP's two weights and a gradient of one."""
    if name not in ("ZeRO-2", "ZeRO-3"):
        return 0
    largest = max(4 * flat.size for flat in step.strategy.flats)        # ZeRO-3's flat is a weight
    return 3 * largest if name == "ZeRO-3" else largest


def compare_with_library(lesson: Lesson, weights: np.ndarray, batches: list, *found: list) -> None:
    """Compare `found`, the weights after a step by ZeRO-1 and ZeRO-2; measure steps of a GPT."""
    comm, psi = lesson.comm, GPT(CONFIG).num_parameters()
    lesson.say("The library's strategies keep pieces of a whole bucket, not of each weight, and "
               "reduce one bucket while backward computes the next. After one step of the same "
               "MLP:")
    lesson.table([Row(f"{name}: difference from the lesson's weights", 1e-9, np.abs(
        library_step(comm, name, weights, batches) - mine).max(), "", "≤")
                  for name, mine in zip(("zero1", "zero2"), found, strict=True)])
    steps = {name: observe(comm, CONFIG, make) for name, make in STRATEGIES.items()}
    in_parts = {name: observe(comm, CONFIG, make, M, num_timed=0).sent
                for name, make in STRATEGIES.items()}
    show_kept(lesson, comm, steps, psi)
    lesson.say("During a step ZeRO-2 needs the whole gradient of a bucket until it is reduced. "
               "ZeRO-3 has the weights of two uses, this one and the last, and the whole gradient "
               "of a weight: at most three times the largest, in an MLP. On this rank:")
    lesson.table([Row(f"{name}: peak − kept", passing(name, step), step.peak - step.kept, "B")
                  for name, step in steps.items()], "peak of one step, without activations")
    show_sent(lesson, comm.size, steps, in_parts, psi)
    show_run(lesson, comm.size, steps, in_parts, psi)
    draw(lesson, comm, steps, psi)


def library_step(comm: Communicator, name: str, weights: np.ndarray, batches: list) -> np.ndarray:
    """Collective.  The weights after a step of the strategy `name`, on this rank's microbatches."""
    model = mlp_of(weights)
    strategy = make_strategy(name, model, comm)
    strategy.forward_backward([Microbatch(x, labels, np.arange(len(x))) for x, labels in batches])
    strategy.step(AdamW(strategy.slabs, lr=1e-3, weight_decay=0.0))
    state = strategy.state_dict()
    return np.array([state[f"{2 * i}.weight"] for i in range(len(weights))])


def show_kept(lesson: Lesson, comm: Communicator, steps: Steps, psi: int) -> None:
    """Bytes that all ranks keep between two steps, and the paper's."""
    p = comm.size
    lesson.say(f"A GPT of Ψ = {psi:,} parameters in float32, AdamW, p = {p} ranks. Between two "
               "steps all ranks together hold:")
    lesson.table([Row(f"{name}: {same} p Ψ + {cut} Ψ", (same * p + cut) * psi,
                      total(comm, steps[name].kept), "B") for name, (same, cut) in KEPT.items()],
                 "kept by all ranks: replicated + sharded")
    lesson.say("The paper trains in mixed precision: parameters and gradients have 2 bytes, and "
               "the states 12, because they include a float32 copy of the parameters. **Beware of "
               "formulas that look alike**: 4Ψ + 12Ψ/p is ZeRO-2 in float32, but ZeRO-1 in the "
               "paper (Rajbhandari et al. 2020, figure 1).")
    lesson.grid(["bytes on a rank", "float32: 4 + 4 + 8", "mixed: 2 + 2 + 12",
                 f"mixed, Ψ = {LARGE / 1e9:g} G, p = {MANY}"],
                [(name, formula(*KEPT[name]), formula(*PAPER[name]),
                  f"{(same + cut / MANY) * LARGE / 1e9:,.1f} GB")
                 for name, (same, cut) in PAPER.items()])


def show_sent(lesson: Lesson, p: int, steps: Steps, in_parts: dict[str, int], psi: int) -> None:
    """Bytes sent in a step of one and of several microbatches."""
    rows = []
    for name, step in steps.items():
        for m, sent in ((1, step.sent), (M, in_parts[name])):
            all_ranks = p * paper_bytes(name.lower().replace("-", ""), psi, p, m)
            factor = f"{all_ranks / 4 / psi / (p - 1):g} Ψ (p−1) × 4 B" if p > 1 else ""
            rows.append(Row(f"{name}, {m} microbatch{'es' if m > 1 else ''}: {factor}", all_ranks,
                            sent, "B", "≤" if name == "ZeRO-3" else "="))
    lesson.table(rows, "sent by all ranks in one step")
    lesson.say("One often reads that communication grows from ZeRO-1 to 2 to 3. **Without "
               "accumulation ZeRO-1 and 2 send the same as DDP.** With m microbatches DDP and "
               "ZeRO-1 accumulate gradients in place and still send 2 Ψ. ZeRO-2 has no room for a "
               "whole gradient, so it reduces after each microbatch and sends (m + 1) Ψ. ZeRO-3 "
               "also gathers for each: up to 3 m Ψ. (Less here: backward does not use embeddings "
               "and biases again, and begins with the head, which is still there.)")


def show_run(lesson: Lesson, p: int, steps: Steps, in_parts: dict[str, int], psi: int) -> None:
    """This run's memory, traffic and time, in multiples of Ψ."""
    lesson.grid(["in this run, bytes on a rank", "kept", "peak"],
                [(name, *(in_psi(count / psi) for count in (step.kept, step.peak)))
                 for name, step in steps.items()])
    lesson.grid(["in this run, elements sent by a rank", "m = 1", f"m = {M}",
                 f"ms a step, {lesson.clock}", "÷ DDP"],
                [(name, *(in_psi(count / 4 / p / psi)
                          for count in (step.sent, in_parts[name])),
                  f"{1e3 * step.seconds:.2f}", f"{step.seconds / steps['DDP'].seconds:.2f}")
                 for name, step in steps.items()])
    lesson.say("ZeRO-1 and 2 may cost time: half of the all-reduce, the all-gather, comes after "
               "the optimizer's step, where no backward hides it.")


def draw(lesson: Lesson, comm: Communicator, steps: Steps, psi: int) -> None:
    """Draw each strategy's memory during a step."""
    passes = {"ZeRO-2": "a bucket", "ZeRO-3": "3 weights"}
    pictures = [step.memory._replace(title=name, predicted=(
        (same + cut / comm.size) * psi + passing(name, step),
        formula(same, cut, passes.get(name, ""))))
        for (name, step), (same, cut) in zip(steps.items(), KEPT.values())]
    lesson.picture(lambda path: draw_memory_timeline(
        path, pictures, f"One step of a GPT on {comm.size} ranks, rank 0, without "
                        "activations", STATES, psi))


def formula(same: int, cut: int, more: str = "") -> str:
    """The bytes that a rank keeps, as a formula."""
    return " + ".join(filter(None, (f"{same}Ψ" if same else "", f"{cut}Ψ/p" if cut else "", more)))


def in_psi(multiple: float) -> str:
    """A number of times Ψ."""
    return f"{number(round(multiple, 2))} Ψ"
