"""Lesson 00. Why distribute?  When does one machine stop?

Two walls stand in the way of a single device:

    memory    float32 parameter 4 + gradient 4 + Adam's two moments 8  =  16 Ψ bytes
    compute   about 6 FLOPs per parameter and token                    =  6 Ψ D FLOPs

Here both are counted: in a small GPT that really runs on these ranks, and in GPTs up to 175
billion parameters whose arrays have shapes but no numbers (`minipar.shape_array`) and cost nothing.

    python lessons/00_why_distribute.py          mpirun -n 4 python lessons/00_why_distribute.py
"""

import numpy as np
from kit import Lesson, Row, number

from minipar.autograd import Meter
from minipar.comm import Communicator
from minipar.comm.collectives import agree_on_sum
from minipar.data import shard_range
from minipar.launch import launch
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW
from minipar.parallel.data import all_reduce_gradients
from minipar.shape_array import ShapeArray
from minipar.viz.wall import Need, draw_wall

# The device of this lesson: 80 GB of memory and 312 TFLOP/s (16-bit), of which a good program
# reaches 40 %.  Tokens: 20 for each parameter (Hoffmann et al. 2022).  Change them and run again.
MEMORY, FLOPS, TOKENS_PER_PARAMETER, DAY = 80e9, 0.4 * 312e12, 20, 86400
PRODUCTS = ("Linear", "FusedAttention")
SMALL = GPTConfig(vocab_size=128, context=64, num_layers=2, num_heads=4, width=64)
SIZES = {                    # vocabulary, context, layers, heads, width: Radford 2019, Brown 2020
    "GPT-2 small": GPTConfig(50257, 1024, 12, 12, 768),
    "GPT-2 XL": GPTConfig(50257, 1024, 48, 25, 1600),
    "GPT-3 6.7B": GPTConfig(50257, 2048, 32, 32, 4096),
    "GPT-3 13B": GPTConfig(50257, 2048, 40, 40, 5120),
    "GPT-3 175B": GPTConfig(50257, 2048, 96, 96, 12288),
}


def count_bytes(model: GPT, optimizer: AdamW) -> int:
    """Bytes that stay allocated from step to step: parameters, gradients, optimizer states."""
    arrays = [array for slab in model.slabs for array in (slab.data, slab.grad)]
    arrays += [array for state in optimizer.states for array in state.values()]
    return sum(array.nbytes for array in arrays)


def count_flops(model: GPT, ids: np.ndarray, num_targets: int) -> Meter:
    """Forward and backward of the loss of ids (b, t + 1), metered."""
    with Meter().running() as meter:
        model.loss(ids[:, :-1], ids[:, 1:], num_targets).backward()
    return meter


def products_formula(config: GPTConfig, batch: int) -> int:
    """FLOPs of all matrix products of forward and backward, exactly.

    A token costs, forward, 2 · 12 d² in the weights of each layer, 4 t d in attention (q kᵀ and
    P v) and 2 v d in the head; backward twice that, for dx and dw.  The biases' gradients, 9 d a
    layer, are sums.  Embeddings, positions and layer norms multiply no matrix.
    """
    t, d, layers, v = config.context, config.width, config.num_layers, config.vocab_size
    per_token = layers * (24 * d * d + 4 * t * d) + 2 * v * d
    return batch * t * (3 * per_token + 9 * layers * d)


def count_large(lesson: Lesson) -> None:
    """The same for models that no laptop holds; and the picture."""
    lesson.say("The same counted for models that no laptop holds, on arrays without numbers:")
    rows, grid, needs = [], [], {}
    for name, config in SIZES.items():
        model = GPT(config).initialize(array=ShapeArray((), np.float32))
        size, num_bytes = model.num_parameters(), count_bytes(model, AdamW(model.slabs))
        rows.append(Row(f"{name}: bytes = 16 Ψ", 16 * size, num_bytes, "B"))
        if config in (SIZES["GPT-2 small"], SIZES["GPT-3 175B"]):
            ids = ShapeArray((1, config.context + 1), np.int64)
            counted = count_flops(model, ids, config.context)
            all_flops, flops = counted.total_flops(), counted.total_flops(names=PRODUCTS)
            rows += [Row(f"{name}: FLOPs of matrix products", products_formula(config, 1), flops),
                     Row("    against 6 Ψ t, the rule of thumb", 6 * size * config.context, flops,
                         rule="≈"),
                     Row("    all operations together", flops, all_flops, rule="≈")]
        tokens = TOKENS_PER_PARAMETER * size
        days = 6 * size * tokens / FLOPS / DAY
        needs[name] = size, num_bytes, days
        grid.append((name, f"{size / 1e9:.3f} G", f"{num_bytes / 1e9:,.0f} GB",
                     -(-num_bytes // int(MEMORY)), f"{6 * size * tokens:.2g}", number(days),
                     number(days / 1024)))
    lesson.table(rows)
    lesson.say("Why not 6 Ψ exactly? Attention adds 12 t d per layer and token, which grows with "
               "the sequence; positions, layer norms and biases have parameters but no product; "
               "the look-up of an embedding costs nothing, but its table is tied to the head, a "
               "product. In a large model all this hardly matters: 72 d² per layer wins.")
    lesson.grid(["", "Ψ", "16 Ψ", "devices of 80 GB", "6 Ψ · 20 Ψ FLOPs", "days on one",
                 "days on 1024"], grid)
    sizes = {name: size for name, (size, _, _) in needs.items()}
    lesson.picture(lambda path: draw_wall(sizes, [
        Need("memory: 16 Ψ bytes", "GB on one device", [b / 1e9 for _, b, _ in needs.values()],
             {"one device: 80 GB": MEMORY / 1e9}),
        Need("compute: 6 Ψ · 20 Ψ FLOPs", "days on one device", [d for _, _, d in needs.values()],
             {"a month": 30, "a month, on 1024 devices": 30 * 1024}),
    ], path, "Where one device stops"))


def main(comm: Communicator) -> None:
    """See the module."""
    lesson = Lesson(comm, __file__, "Why distribute? When does one machine stop?")

    lesson.say("A small GPT trains one step on all ranks: each has the whole model, and its share "
               "of a batch of 16 samples.")
    model, mine = GPT(SMALL).initialize(), shard_range(16, comm.rank, comm.size)
    optimizer = AdamW(model.slabs)
    ids = np.random.default_rng(0).integers(0, SMALL.vocab_size, (16, SMALL.context + 1))
    meter = count_flops(model, ids[mine.start:mine.stop], 16 * SMALL.context)
    all_reduce_gradients(model, comm)
    optimizer.step()
    flops = int(agree_on_sum(comm, meter.total_flops(names=PRODUCTS)))
    num_parameters = model.num_parameters()
    lesson.table([
        Row("bytes on every rank: 16 Ψ", 16 * num_parameters, count_bytes(model, optimizer), "B"),
        Row("FLOPs of matrix products, all ranks", products_formula(SMALL, 16), flops),
        Row("… on this rank alone", products_formula(SMALL, len(mine)),
            meter.total_flops(names=PRODUCTS)),
        Row("6 Ψ D, the rule of thumb", 6 * num_parameters * 16 * SMALL.context, flops, rule="≈"),
    ], f"Ψ = {num_parameters:,} parameters, p = {comm.size}")
    lesson.say("More ranks divide the *compute*. The *memory* of this way of spreading, data "
               "parallelism, stays 16 Ψ on each: sharding it (ZeRO) divides that too.")

    if comm.rank == 0:
        count_large(lesson)
    lesson.takeaway("One device stops twice: at 16 Ψ bytes, which parallelism must divide or move, "
                    "and at 6 Ψ D FLOPs, which it must share out.")
    lesson.exercises(questions=[
        "Size a 7-billion run: put GPTConfig(50257, 2048, 32, 32, 4096) to work on 2 T tokens. How "
        "many 80 GB devices hold it? How many finish in 30 days? Which wall decides?",
        "Which width makes attention half of a layer's FLOPs at a context of 32,768?",
        "In 16 bits with a 32-bit master copy, why is it 16 Ψ bytes again?"])


if __name__ == "__main__":
    launch(main)
