"""Lesson 00: bytes and FLOPs of a small GPT in a step, and of GPTs of up to 175 billion weights."""

from collections.abc import Callable

import numpy as np

from minipar.autograd import Meter
from minipar.backend.shape_array import ShapeArray
from minipar.comm.collectives import sum_over_ranks
from minipar.data import shard_range
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW
from minipar.parallel.cost.activations import gpt_activations
from minipar.parallel.data.ddp_by_autograd import all_reduce_gradients
from minipar.viz import Requirement, draw_device_limits

from .gpt_flops import count_flops, predict_flops
from .kit import ABOUT, EQUAL, Lesson, Row, number

# The device of this lesson: 80 GB of memory and 312 TFLOP/s (16-bit); a good program reaches 40 %.
# Tokens: 20 for each parameter (Hoffmann et al. 2022).  Change them and run again.
MEMORY, FLOPS, TOKENS_PER_PARAMETER, DAY = 80e9, 0.4 * 312e12, 20, 86400
SMALL = GPTConfig(vocab_size=128, context=64, num_layers=2, num_heads=4, width=64)
SIZES = {                    # vocabulary, context, layers, heads, width: Radford 2019, Brown 2020
    "GPT-2 small": GPTConfig(50257, 1024, 12, 12, 768),
    "GPT-2 XL": GPTConfig(50257, 1024, 48, 25, 1600),
    "GPT-3 6.7B": GPTConfig(50257, 2048, 32, 32, 4096),
    "GPT-3 13B": GPTConfig(50257, 2048, 40, 40, 5120),
    "GPT-3 175B": GPTConfig(50257, 2048, 96, 96, 12288),
}


def compare_with_library(lesson: Lesson, parameters: Callable, training_bytes: Callable,
                         training_flops: Callable, devices: Callable) -> None:
    """Count bytes and FLOPs of GPTs, and compare them with the lesson's formulas."""
    comm = lesson.comm
    lesson.say("A small GPT trains one step on all ranks. Each rank has the whole model and its "
               "share of a batch of 16 samples.")
    model, mine = GPT(SMALL).initialize(), shard_range(16, comm.rank, comm.size)
    optimizer = AdamW(model.slabs)
    ids = np.random.default_rng(0).integers(0, SMALL.vocab_size, (16, SMALL.context + 1))
    inputs, targets = (ids[mine.start:mine.stop, i:i + SMALL.context].copy() for i in (0, 1))
    meter, kept = run(model, inputs, targets, 16 * SMALL.context)
    all_reduce_gradients(model, comm)
    optimizer.step()
    counted, size = count_flops(meter), model.num_parameters()
    lesson.table([
        Row("bytes on every rank: 16 Ψ", 16 * size, count_bytes(model, optimizer), "B"),
        Row("activations on this rank", gpt_activations(SMALL, len(mine)), kept, "B"),
        *rows_of("this rank", SMALL, size, len(mine), counted),
        Row("FLOPs of all ranks, against 6 Ψ D", 6 * size * 16 * SMALL.context,
            int(sum_over_ranks(comm, sum(counted.values()))), rule="≈"),
    ], f"Ψ = {size:,} parameters, p = {comm.size}")
    lesson.say("More ranks divide the *compute* and the activations. This is data parallelism, and "
               "it leaves 16 Ψ bytes of *memory* on every rank; ZeRO shards those, too. (The rule "
               "of thumb is far off here: in a tiny model layer norms, GELU and softmax weigh "
               "more.)")

    if comm.rank == 0:
        count_large(lesson, parameters, training_bytes, training_flops, devices)


def count_bytes(model: GPT, optimizer: AdamW) -> int:
    """Bytes that stay allocated from step to step: parameters, gradients, optimizer states."""
    arrays = [array for slab in model.slabs for array in (slab.data, slab.grad)]
    arrays += [array for state in optimizer.states for array in state.values()]
    return sum(array.nbytes for array in arrays)


def run(model: GPT, inputs: np.ndarray, targets: np.ndarray,
        num_targets: int) -> tuple[Meter, int]:
    """The meter of forward and backward on (b, t), and the bytes of activations in between."""
    ledger = Ledger(model.parameters())
    with Meter().running() as meter:
        with ledger.recording():
            loss = model.loss(inputs, targets, num_targets)
        kept = ledger.live
        loss.backward()
    return meter, kept


def rows_of(name: str, config: GPTConfig, size: int, batch: int,
            counted: dict[str, int]) -> list[Row]:
    """FLOPs by kind, predicted and counted; and their sum against the rule of thumb."""
    rows = [Row(f"{name}: FLOPs of {kind}", flops, counted[kind])
            for kind, flops in predict_flops(config, batch).items()]
    return [*rows, Row(f"{name}: all FLOPs, against 6 Ψ D", 6 * size * batch * config.context,
                       sum(counted.values()), rule="≈")]


def count_large(lesson: Lesson, parameters: Callable, training_bytes: Callable,
                training_flops: Callable, devices: Callable) -> None:
    """Count the same for models that no laptop can hold; draw the picture."""
    lesson.say("The same counts for models that no laptop can hold, on arrays without numbers, for "
               "one sequence:")
    rows, grid, needs = [], [], {}
    for name, config in SIZES.items():
        model = GPT(config).initialize(array=ShapeArray((), np.float32))
        size, num_bytes = model.num_parameters(), count_bytes(model, AdamW(model.slabs))
        ids = ShapeArray((1, config.context), np.int64)
        meter, kept = run(model, ids, ids, config.context)
        rows += [Row(f"{name}: Ψ", parameters(
                     config.vocab_size, config.context, config.num_layers, config.width), size),
                 Row(f"{name}: bytes = 16 Ψ", training_bytes(size), num_bytes, "B"),
                 Row(f"{name}: activations", gpt_activations(config, 1), kept, "B")]
        if name in ("GPT-2 small", "GPT-3 175B"):
            rows += rows_of(name, config, size, 1, count_flops(meter))
        all_bytes, all_flops = num_bytes + kept, training_flops(
            size, TOKENS_PER_PARAMETER * size)
        days = all_flops / FLOPS / DAY
        needs[name] = size, all_bytes, days
        grid.append((name, f"{size / 1e9:.3f} G", f"{num_bytes / 1e9:,.0f} GB",
                     f"{kept / 1e9:,.1f} GB", -(-all_bytes // int(MEMORY)), f"{all_flops:.2g}",
                     number(days),
                     number(devices(size, TOKENS_PER_PARAMETER * size, MEMORY, FLOPS, 30)[1])))
    lesson.counts([row for row in rows if row.rule == EQUAL],
                  f"Parameters, bytes and FLOPs of {len(SIZES)} GPTs")
    lesson.table([row for row in rows if row.rule == ABOUT])
    lesson.say("Why not exactly 6 Ψ per token? Attention adds 12 d for each of about t²/2 pairs of "
               "tokens, so its share grows with the sequence. Positions, layer norms and biases "
               "have parameters but no matrix product. Looking up an embedding costs nothing, but "
               "its table is tied to the head, which is a product. In a large model the 72 d² per "
               "layer and token outweigh all of this.")
    lesson.grid(["", "Ψ", "16 Ψ", "activations", "devices of 80 GB", "6 Ψ · 20 Ψ FLOPs",
                 "days on one", "devices for a month"], grid)
    sizes = {name: size for name, (size, _, _) in needs.items()}
    lesson.picture(lambda path: draw_device_limits(path, sizes, [
        Requirement("memory: 16 Ψ bytes + activations of one sequence", "GB on one device",
                    [b / 1e9 for _, b, _ in needs.values()], {"one device: 80 GB": MEMORY / 1e9}),
        Requirement("compute: 6 Ψ · 20 Ψ FLOPs", "days on one device",
                    [d for _, _, d in needs.values()],
                    {"a month": 30, "a month, on 1024 devices": 30 * 1024}),
    ], "Where one device stops"))
