"""Lesson 08: the library's DDP with a GPT: buckets, accumulation, times on simulated ranks."""

from typing import NamedTuple

import numpy as np

from minipar.comm import Cluster, Communicator
from minipar.comm.cost import predict
from minipar.comm.trace import Trace
from minipar.launcher import simulate
from minipar.nn import GPT, GPTConfig
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.viz import draw_timeline, side_by_side

from .kept_trace import stop_trace
from .kit import Lesson, Row
from .measuring import total
from .observed_step import RingWire
from .plain_mlp import mlp_of

CONFIG = GPTConfig(vocab_size=64, context=32, num_layers=5, num_heads=2, width=32)
PSI = GPT(CONFIG).num_parameters()
NUM_RANKS, FLOPS = 4, 1e9                   # of the simulated cluster
SIZES_MB = 25.0, 0.06, 0.016                # of a bucket


def ddp(model: GPT, comm: Communicator, bucket_mb: float) -> DistributedDataParallel:
    """DDP with buckets of one size, each reduced on a ring, whose bytes are easy to predict."""
    return DistributedDataParallel(model, comm, bucket_mb, bucket_mb, wire=RingWire())


def in_words(strategy: DistributedDataParallel) -> str:
    """The number of its buckets."""
    return f"{len(strategy.flats)} buckets" if len(strategy.flats) > 1 else "one bucket"


def draw_batch(rows: range, masked: bool = False) -> Microbatch:
    """Samples `rows` of a stream of random tokens; `masked`: every third target does not count."""
    ids = np.array([np.random.default_rng(row).integers(0, CONFIG.vocab_size, CONFIG.context + 1)
                    for row in rows]).reshape(len(rows), CONFIG.context + 1)
    targets = np.where(masked & (ids[:, 1:] % 3 == 0), -100, ids[:, 1:])
    return Microbatch(ids[:, :-1], targets, np.array(rows, int))


def ddp_in_float64(comm: Communicator, bucket_mb: float) -> DistributedDataParallel:
    """DDP in float64, with as many buckets as float32 has in buckets of `bucket_mb`."""
    return ddp(GPT(CONFIG).initialize(0, np.float64), comm, 2 * bucket_mb)      # twice the bytes


def count_messages(comm: Communicator) -> list[Row]:
    """Rows of the bytes and messages of one step, with buckets of several sizes."""
    p, rows = comm.size, []
    for bucket_mb in SIZES_MB:
        strategy = ddp_in_float64(comm, bucket_mb)
        comm.start_trace()
        strategy.forward_backward([draw_batch(range(10))])
        trace = stop_trace(comm)
        messages = sum(predict("all_reduce", "ring", p, bucket.size).messages
                       for bucket in strategy.flats)
        rows += [Row(f"{in_words(strategy)}: bytes of all ranks, 2 (p−1) n", 2 * (p - 1) * 8 * PSI,
                     total(comm, trace.bytes_sent()), "B"),
                 Row("    messages: 2 p (p−1) a bucket", messages, total(comm, trace.num_sent()))]
    return rows


def accumulate(comm: Communicator) -> list[Row]:
    """Rows that compare 4 microbatches, the first 3 inside no_sync, with one batch of them all."""
    parts = [draw_batch(range(first, last), masked=True)        # the last microbatch is small
             for first, last in ((0, 3), (3, 6), (6, 9), (9, 10))]
    strategy = ddp_in_float64(comm, SIZES_MB[-1])

    def step(batches: list[Microbatch]) -> tuple[int, np.ndarray]:
        """(bytes that all ranks sent, the gradient)."""
        for slab in strategy.slabs:
            slab.zero_grad()
        comm.start_trace()
        strategy.forward_backward(batches)
        sent = total(comm, stop_trace(comm).bytes_sent())
        return sent, strategy.slabs[0].complete_grad().copy()
    _, whole = step([Microbatch(*map(np.concatenate, zip(*parts)))])
    sent, accumulated = step(parts)
    return [Row("4 microbatches, 3 of them inside no_sync: bytes", 2 * (comm.size - 1) * 8 * PSI,
                sent, "B"),
            Row("    their gradient − that of one big batch", 1e-12,
                float(np.max(np.abs(accumulated - whole))), rule="≤")]


class Step(NamedTuple):
    """Rank 0's step: simulated seconds, and what it traced."""
    forward: float
    backward: float
    trace: Trace
    buckets: str


def time_step(bandwidth: float, bucket_mb: float | None) -> Step:
    """One step on links of `bandwidth` bytes per second; without messages if bucket_mb is None."""
    def one_step(comm: Communicator) -> Step:
        model, batch = GPT(CONFIG).initialize(), draw_batch(range(4))
        strategy = Strategy(model, comm) if bucket_mb is None else ddp(model, comm, bucket_mb)
        comm.start_trace()
        start = comm.now()
        loss = model.loss(batch.inputs, batch.targets, 4 * CONFIG.context * comm.size)
        middle = comm.now()
        strategy.backward(loss)
        return Step(middle - start, comm.now() - middle, comm.stop_trace(),
                    "" if bucket_mb is None else in_words(strategy))
    ranks, _ = simulate(one_step, Cluster(NUM_RANKS, latency=1e-6, bandwidth=bandwidth,
                                          flops_per_second=FLOPS, memory_bandwidth=1e15))
    return ranks[0]


def hide(lesson: Lesson) -> None:
    """Time the step on simulated ranks, with several sizes of buckets and speeds of links."""
    forward, backward, *_ = time_step(1.0, None)
    volume = 2 * 4 * PSI * (NUM_RANKS - 1) / NUM_RANKS          # bytes that each rank sends
    equal = volume / backward                                   # the link that makes M = B
    runs = [time_step(equal, bucket_mb) for bucket_mb in SIZES_MB]
    seconds = [run.forward + run.backward for run in runs]
    parallel, serial = forward + backward, forward + 2 * backward
    lesson.say(f"Now in simulated time, {NUM_RANKS} ranks. Messages take as long as backward: "
               f"F = {forward * 1e3:.1f} ms, B = M = {backward * 1e3:.1f} ms.")
    lesson.grid(["simulated", "bucket size", "F + B + M", "step", "F + max(B, M)", "of M hidden"], [
        (run.buckets, f"{min(size * 1024, 4 * PSI / 1024):,.0f} KiB", f"{serial * 1e3:.1f} ms",
         f"{time * 1e3:.1f} ms", f"{parallel * 1e3:.1f} ms",
         f"{max(0.0, serial - time) / backward:.0%}")
        for run, size, time in zip(runs, SIZES_MB, seconds)])
    rows = [Row("one bucket: F + B + M", serial * 1e3, seconds[0] * 1e3, "ms", "≈")]
    for ratio in (0.25, 0.5, 1, 2, 4):
        step = runs[-1] if ratio == 1 else time_step(equal / ratio, SIZES_MB[-1])
        rows.append(Row(f"{runs[-1].buckets}, M = {ratio:g} B: F + max(B, M)",
                        (forward + backward * max(1, ratio)) * 1e3,
                        (step.forward + step.backward) * 1e3, "ms", "≈"))
    lesson.table(rows, "step", "simulated")
    lesson.say("Two things stay exposed: the last bucket, complete only when backward ends, and "
               "ring rounds that wait until backward polls between two operations. Smaller buckets "
               "leave less at the end. Each has 2(p−1) latencies; here those of several overlap.")
    trace = side_by_side([run.trace for run in runs])
    lesson.picture(lambda path: draw_timeline(
        path, trace, "Forward and backward of one rank, and its messages: buckets hide them",
        runs=[run.buckets for run in runs]))


def compare_with_library(lesson: Lesson, weights: np.ndarray, x: np.ndarray, labels: np.ndarray,
                         found: list) -> None:
    """Compare `found`, the summed gradients; count and time the steps of a GPT."""
    comm = lesson.comm
    lesson.say("In the library a non-blocking collective is the blocking function, in a greenlet "
               "that pauses where it would wait (comm/work.py). With buckets of two layers, the "
               "same weights and samples:")
    lesson.table([Row("difference from the lesson's gradients", 1e-14, np.abs(np.array(
        library_gradients(comm, weights, x, labels)) - np.array(found)).max(), "", "≤")])
    lesson.say(f"A step of a GPT on p = {comm.size} ranks, n = {8 * PSI:,} bytes of gradients "
               "(float64):")
    lesson.counts(count_messages(comm), "Bytes and messages with buckets of three sizes")
    lesson.table(accumulate(comm))
    if comm.rank == 0:
        hide(lesson)


def library_gradients(comm: Communicator, weights: np.ndarray, x: np.ndarray, labels: np.ndarray
                      ) -> list[np.ndarray]:
    """Collective.  The summed gradients by DDP, from this rank's rows, in several buckets."""
    model = mlp_of(weights)
    bucket_mb = 2 * weights[0].nbytes / 2**20
    strategy = DistributedDataParallel(model, comm, bucket_mb, bucket_mb)
    strategy.forward_backward([Microbatch(x, labels, np.arange(len(x)))])
    return [model[2 * i].weight.grad for i in range(len(weights))]
