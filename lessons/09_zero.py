"""Lesson 09. ZeRO-1 and ZeRO-2: what is redundant?

In data parallelism every rank holds the same parameters, sums the same gradients, and steps with
the same optimizer states to the same result: N times the same 16 Ψ bytes.  But an all-reduce is a
reduce-scatter and an all-gather, and between the two each rank has its own piece of the sum:

    gradients ─▶ reduce-scatter ─▶ step on 1/N ─▶ all-gather ─▶ parameters    again 2 Ψ (N-1)/N

ZeRO-1 lets each rank step on its piece alone, so it needs 1/N of the optimizer states; ZeRO-2 also
drops the gradients that belong to other ranks; ZeRO-3 (lesson 10) the parameters.

    python lessons/09_zero.py          mpirun -n 4 python lessons/09_zero.py
"""

from kit import Lesson, Row, number
from one_step import STATES, Step, observe, ring, total

from minipar.comm import Communicator
from minipar.launch import launch
from minipar.nn import GPT, GPTConfig, Linear
from minipar.parallel.cost import paper_bytes
from minipar.parallel.ddp import DistributedDataParallel
from minipar.parallel.zero import ZeRO1, ZeRO2, ZeRO3
from minipar.viz.memory import draw_memory

CONFIG = GPTConfig(vocab_size=64, context=32, num_layers=4, num_heads=4, width=48, tied=False)
BUCKET_MB, K = 0.1, 3           # megabytes of a bucket of gradients; microbatches


STRATEGIES = {
    "DDP": lambda model, comm: DistributedDataParallel(model, comm, BUCKET_MB, BUCKET_MB, ring),
    "ZeRO-1": lambda model, comm: ZeRO1(model, comm, BUCKET_MB, BUCKET_MB),
    "ZeRO-2": lambda model, comm: ZeRO2(model, comm, BUCKET_MB, BUCKET_MB),
    "ZeRO-3": ZeRO3,
}
# Bytes of float32 with AdamW: (on every rank the same, in pieces that make up a whole), each × Ψ.
KEPT = {"DDP": (16, 0), "ZeRO-1": (8, 8), "ZeRO-2": (4, 12), "ZeRO-3": (0, 16)}


def passing(name: str, step: Step) -> int:
    """Bytes that come and go during a step: the largest bucket of gradients; the largest layer."""
    if name == "ZeRO-2":
        return max(4 * (run.stop - run.start) for run in step.strategy.buckets)
    layers = [part for _, part in step.strategy.model.named_modules() if isinstance(part, Linear)]
    return 4 * max(layer.num_parameters() for layer in layers) if name == "ZeRO-3" else 0


def main(comm: Communicator) -> None:
    """See the module."""
    lesson = Lesson(comm, __file__, "ZeRO-1 and ZeRO-2: what is redundant?")
    p, psi = comm.size, GPT(CONFIG).num_parameters()
    steps = {name: observe(comm, CONFIG, make) for name, make in STRATEGIES.items()}
    in_parts = {name: observe(comm, CONFIG, make, K, num_timed=0).sent
                for name, make in STRATEGIES.items()}

    lesson.say(f"A GPT of Ψ = {psi:,} parameters in float32, AdamW, N = {p} ranks. Between two "
               "steps all ranks together hold:")
    lesson.table([Row(f"{name}: {same} N Ψ + {cut} Ψ", (same * p + cut) * psi,
                      total(comm, steps[name].kept), "B") for name, (same, cut) in KEPT.items()],
                 "kept by all ranks: what they all have, and what they share out")
    lesson.say("During a step ZeRO-2 needs a bucket's whole gradient until it is reduced, ZeRO-3 "
               "a layer's whole weights while it uses them. On this rank:")
    lesson.table([Row(f"{name}: peak − kept", passing(name, step), step.peak - step.kept, "B")
                  for name, step in steps.items()], "peak of one step, activations apart")
    rows = []
    for name, step in steps.items():
        for k, sent in ((1, step.sent), (K, in_parts[name])):
            all_ranks = p * paper_bytes(name.lower().replace("-", ""), psi, p, k)
            factor = f"{all_ranks / 4 / psi / (p - 1):g} Ψ (N−1)" if p > 1 else ""
            rows.append(Row(f"{name}, {k} microbatch{'es' if k > 1 else ''}: {factor}", all_ranks,
                            sent, "B", "≤" if name == "ZeRO-3" else "="))
    lesson.table(rows, "sent by all ranks in one step")
    lesson.say("One often reads that communication grows, ZeRO-1 < 2 < 3. **Without accumulation "
               "ZeRO-1 and 2 send the same as DDP.** With k microbatches DDP and ZeRO-1 add up in "
               "place and still send 2 Ψ; ZeRO-2 has no room for a whole gradient, reduces each, "
               "and sends (k + 1) Ψ; ZeRO-3 gathers for each too: up to 3 k Ψ. (Less here: in "
               "backward nobody needs embeddings and biases again.)")
    lesson.grid(["measured in this run, per rank", "kept", "peak", "sent, k = 1", f"sent, k = {K}",
                 "ms a step", "÷ DDP"],
                [(name, *(f"{number(round(count / psi / size, 2))} Ψ" for count, size in (
                    (step.kept, 1), (step.peak, 1), (step.sent, 4 * p), (in_parts[name], 4 * p))),
                  f"{1e3 * step.seconds:.2f}", f"{step.seconds / steps['DDP'].seconds:.2f}")
                 for name, step in steps.items()])
    lesson.say("Kept and peak are in bytes, sent is in elements. What ZeRO-1 and 2 may cost is "
               "time: half of an all-reduce, the all-gather, comes after the step, where no "
               "backward hides it.")
    pictures = [step.memory._replace(title=name, predicted=(
        (same + cut / p) * psi + passing(name, step), _formula(same, cut, name)))
        for (name, step), (same, cut) in zip(steps.items(), KEPT.values())]
    lesson.picture(lambda path: draw_memory(
        pictures, path, f"One step of a GPT on {p} ranks, rank 0, activations apart", STATES, psi))
    lesson.takeaway("What all ranks hold alike is held N − 1 times too often: ZeRO cuts it into N "
                    "pieces, and for optimizer states and gradients that costs no traffic.")
    lesson.exercises("shard_overlap", "zero_publish", "passing_gradient_take", questions=[
        "A ZeRO-1 that all-reduces the gradients, steps on its piece and broadcasts the updates "
        "sends 3 Ψ. Which third was unnecessary?",
        "Raise BUCKET_MB to 25: what becomes of ZeRO-2's peak, and of its advantage over ZeRO-1?",
        "In 16 bits with a 32-bit master copy (2 + 2 + 12) Ψ: which of the three is worth most?"])


def _formula(same: int, cut: int, name: str) -> str:
    parts = [f"{same}Ψ" if same else "", f"{cut}Ψ/N" if cut else "",
             {"ZeRO-2": "a bucket", "ZeRO-3": "a layer"}.get(name, "")]
    return " + ".join(filter(None, parts))


if __name__ == "__main__":
    launch(main)
