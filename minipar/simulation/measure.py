"""Measure this machine: what each operation takes, as a line through probes; and a real step.

    probe: a GPT of one layer      Linear forward     2·m·n·k FLOPs, bytes, seconds   ×
    …, of several sizes            Linear forward     …                                   ×
                                        └─▶ seconds a call + a FLOP + a byte: a line for each

All ranks compute at the same time, each a probe of its own, and a meter times every operation by
itself.  The least of several rounds counts: a rank then had a core for itself.  No probe is a
step that is to be predicted: they are of one layer, on one rank, without messages.
"""

import os
import time
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ..autograd.meter import Meter
from ..comm import Communicator
from ..comm.collectives import all_reduce
from ..comm.collectives.barrier import barrier
from ..comm.cost.fit import fit
from ..comm.cost.measure import LINK_SIZES, measure_algorithms, measure_links
from ..comm.mesh import DeviceMesh
from ..environment import blas_threads, num_cores
from ..nn import GPT, GPTConfig
from ..optim import AdamW
from ..parallel.strategy import Microbatch
from ..plan.cluster import Cluster, Software
from ..plan.layout import Layout
from .step import make_parallel, mesh_sizes, take_step

Line = tuple[float, float, float]       # seconds of a call, of a FLOP, of a byte
PROBES = ((32, 16, 1), (64, 64, 2), (96, 128, 4), (192, 64, 8), (192, 256, 2), (384, 128, 4),
          (640, 128, 4))                # width, tokens of a sequence, sequences


class Operations(NamedTuple):
    """The line of each operation, "Gelu forward"; and the worst relative error of each."""

    lines: dict[str, Line]
    errors: dict[str, float]


def measure_machine(comm: Communicator, num_rounds: int,
                    probes: Sequence[tuple[int, int, int]] = PROBES) -> Cluster:
    """Collective.  The numbers of a cluster file, for ranks of one node that compute at once."""
    p, threads, cores = comm.size, blas_threads(), max(1, num_cores() // blas_threads())
    lines, _ = measure_operations(comm, num_rounds, probes)
    latency, later, link = measure_messages(comm, num_rounds)
    best = 1 / max(min(line[1] for name, line in lines.items() if "Linear" in name), 1e-15)
    byte = max(lines["Add forward"][2], 1e-13)
    _, flop, of_byte = (sum(lines[f"CrossEntropy {phase}"][i] for phase in ("forward", "backward"))
                        for i in range(3))
    software = Software(
        name="minipar", product=1.0, stream=1.0, link=1.0, nic=1.0, flash=None,
        activations="minipar", weight_bytes=4, gradient_bytes=4, master_bytes=8, message_bytes=4,
        zero1_bytes=8, adam_bytes=lines["AdamW optimizer"][1] * AdamW.flops_per_parameter / byte,
        latency=latency, latency_rank=later, operations={k: [*line] for k, line in lines.items()},
        loss=(3 * flop + 4 * of_byte) / byte,
        fitted="nothing: all numbers are those of small programs, each timed by itself")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / p
    return Cluster(
        "", f"this machine: {p} ranks of {threads} threads share {cores * threads} cores; rates "
        "are those of a rank that has its cores while all ranks compute", {"fp32": best}, memory,
        memory, 1 / byte, 1, link, link, dtype="fp32", host=1 / byte, per_node=p, cores=cores,
        software=software)


def measure_messages(comm: Communicator, num_rounds: int) -> tuple[float, float, float]:
    """Collective.  Latency of a message, of a round of a ring, and bytes per second of a ring.

    The ring that takes as long as the all-reduce that "auto" takes, whatever that is.
    """
    if comm.size == 1:
        return 0.0, 0.0, 1e10
    near, far = measure_links(comm, LINK_SIZES[:8], num_rounds)
    alpha = (near or far).link.latency
    sizes = LINK_SIZES[1:]
    whole = fit(sizes, measure_algorithms(comm, "all_reduce", sizes, num_rounds,
                                          ["auto"])["auto"]).link
    rounds = 2 * (comm.size - 1)
    return (alpha, max(0.0, whole.latency - alpha) / rounds,
            rounds / comm.size * whole.bandwidth)


def measure_operations(comm: Communicator, num_rounds: int,
                       probes: Sequence[tuple[int, int, int]] = PROBES) -> Operations:
    """Collective.  The operations of small GPTs, timed one by one on all ranks at once.

    The time between two of them, Python and additions of gradients, is shared out.  What a step
    does beside forward and backward is a part of "AdamW optimizer".
    """
    found: dict[str, list[tuple[float, ...]]] = {}
    for width, context, batch in probes:
        model = GPTConfig(4 * width, context, 2, max(1, width // 32), width)
        rows, seconds, bare = time_probe(comm, model, batch, num_rounds)
        between = max(1.0, bare / sum(seconds))
        for (name, flops, num_bytes), each in zip(rows, seconds):
            found.setdefault(name, []).append((flops, num_bytes, each * between))
    fits = {name: fit_line(points) for name, points in found.items()}
    return Operations({name: line for name, (line, _) in fits.items()},
                      {name: worst for name, (_, worst) in fits.items()})


def time_probe(comm: Communicator, config: GPTConfig, batch: int, num_rounds: int
               ) -> tuple[list[tuple[str, int, int]], list[float], float]:
    """Each operation of a step on one rank, its least seconds, and those of the step unmetered."""
    layout = Layout(batch=batch, microbatch=batch, sp=False)
    now = time.process_time if blas_threads() == 1 else time.perf_counter
    mesh = DeviceMesh(DeviceMesh(comm, dp=comm.size).alone(), dp=1)
    strategy = make_parallel(layout, GPT(config).initialize(0), mesh)
    optimizer, microbatches = AdamW(strategy.slabs), numbers(config, layout)
    rows: list[tuple[str, int, int]] = []
    seconds: list[float] = []

    def stop(started: float, name: str, phase: str, flops: int, num_bytes: int) -> None:
        seconds.append(now() - started)
        rows.append((f"{name} {phase}", flops, num_bytes))

    def run() -> float:
        optimizer.zero_grad()
        start = now()
        strategy.forward_backward(microbatches)
        return now() - start

    best, bare, update = np.array([np.inf]), np.inf, np.inf
    for _ in range(num_rounds + 1):
        barrier(comm, algorithm="dissemination")
        bare = min(bare, run())
        rows.clear()
        seconds.clear()
        with Meter(now, stop).running():
            run()
        best = np.minimum(best, seconds)
        start = now()
        optimizer.zero_grad()
        strategy.clip_grad_norm(1.0)
        strategy.step(optimizer)
        update = min(update, now() - start)
    size = sum(slab.data.size for slab in strategy.slabs)
    rows.append(("AdamW optimizer", optimizer.flops_per_parameter * size, 0))
    mean = all_reduce(comm, np.array([*best, update, bare]), algorithm="ring") / comm.size
    return rows, mean[:-1].tolist(), float(mean[-1] + mean[-2])


def fit_line(points: Sequence[tuple[float, ...]]) -> tuple[Line, float]:
    """The line through (flops, bytes, seconds), none of its numbers negative, and its worst error.

    Squares of errors, each divided by the seconds: long operations count more, as they should.
    """
    table = np.array(points)
    t, columns = table[:, 2], np.column_stack([np.ones(len(table)), table[:, :2]])
    scaled = columns / np.sqrt(t)[:, None]
    best, least = np.zeros(3), np.inf
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            used = [*chosen]
            solved, _, rank, _ = np.linalg.lstsq(scaled[:, used], np.sqrt(t))
            line = np.zeros(3)
            line[used] = solved
            loss = float(((scaled @ line - np.sqrt(t)) ** 2).sum())
            if rank == count and line.min() >= 0 and loss < 0.999 * least:
                best, least = line, loss
    call, flop, byte = best.tolist()
    return (call, flop, byte), float(np.abs(columns @ best / t - 1).max())


def numbers(config: GPTConfig, layout: Layout) -> list[Microbatch]:
    """The microbatches of a rank, of random tokens."""
    shape = layout.microbatch, config.context
    ids = np.random.default_rng(0).integers(0, config.vocab_size, shape)
    return [Microbatch(ids, ids, np.arange(layout.microbatch))] * layout.microbatches


def measured_step(comm: Communicator, config: GPTConfig, layout: Layout, num_rounds: int,
                  now: Callable[[], float] = time.perf_counter) -> float:
    """Collective.  Seconds of a real step of that layout on the slowest rank, the lower quartile.
    """
    mesh = DeviceMesh(comm, **mesh_sizes(layout))
    strategy = make_parallel(layout, GPT(config).initialize(0), mesh)
    optimizer, batch = AdamW(strategy.slabs), numbers(config, layout)
    times = []
    for _ in range(num_rounds + 2):
        barrier(comm, algorithm="dissemination")
        start = now()
        take_step(strategy, optimizer, batch)
        times.append(now() - start)
    slowest = all_reduce(comm, np.array(times[2:]), op="max", algorithm="ring")
    return float(np.quantile(slowest, 0.25))
