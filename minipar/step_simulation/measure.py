"""Measure this machine: what each operation takes, as a line through probes; and a real step.

    probe: a GPT of two layers    Linear forward     2·m·n·k FLOPs, bytes, seconds   ×
    …, of several sizes            Linear forward     …                                   ×
                                        └─▶ seconds a call + a FLOP + a byte: a line for each

All ranks compute at the same time, each its own copy of a probe, and a meter times each operation
by itself, in seconds of a core.  Of several rounds the lower quartile counts.  Probes differ from
the steps that are predicted: they have two layers and other sizes, on one rank, without messages.
"""

import os
import platform
import time
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from ..autograd.meter import Meter
from ..comm import Communicator
from ..comm.collectives import all_reduce
from ..comm.collectives.barrier import barrier
from ..comm.cost.fit import fit
from ..comm.cost.measure import LINK_SIZES
from ..comm.mesh import DeviceMesh
from ..comm.simulated.links import Link
from ..environment import blas_threads, num_cores
from ..nn import GPT, GPTConfig
from ..optim import AdamW
from ..parallel.strategy import Microbatch
from ..plan.cluster import ClusterSpec, Software
from ..plan.layout import Layout
from .step import make_parallel, mesh_sizes, take_step

Line = tuple[float, float, float]       # seconds of a call, of a FLOP, of a byte
OF_LOGIT = {"forward": (5, 4), "backward": (1, 4)}      # FLOPs and bytes of a logit's loss
USUAL = 0.25                            # the quantile of rounds that counts
PROBES = ((32, 16, 1), (64, 64, 2), (96, 128, 4), (192, 64, 8), (192, 256, 2), (384, 128, 4),
          (640, 128, 4))                # width, tokens of a sequence, sequences


def measure_machine(comm: Communicator, num_rounds: int,
                    probes: Sequence[tuple[int, int, int]] = PROBES) -> ClusterSpec:
    """Collective.  This machine as a cluster, for the ranks of `comm` on one node.

    A simulated step uses the seconds of `operations`; the plan uses their summary, the rates.
    """
    lines = measure_operations(comm, num_rounds, probes)
    latency, later, link = measure_messages(comm, num_rounds)
    p, of_byte = comm.size, max(lines["Add forward"][2], 1e-12)
    of_flop = min(lines[f"Linear {phase}"][1] for phase in ("forward", "backward", "weights"))
    of_logit = sum(np.dot(lines[f"CrossEntropy {phase}"][1:], work)
                   for phase, work in OF_LOGIT.items())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / p
    software = Software(
        name="minipar", product=1.0, stream=1.0, link=1.0, nic=1.0, flash=None,
        operations={name: [*line] for name, line in lines.items()},
        loss=float(of_logit) / of_byte,
        adam_bytes=lines["AdamW optimizer"][1] * AdamW.flops_per_parameter / of_byte,
        latency=latency, latency_rank=later, activations="minipar", weight_bytes=4,
        gradient_bytes=4, master_bytes=8, message_bytes=4, zero1_bytes=8,
        fitted="nothing to steps: each number is that of a small program")
    return ClusterSpec(
        name="", title=f"{platform.node()}: {p} ranks on {num_cores()} cores, measured while all "
        "of them compute; rates are those of a rank that has a core to itself",
        peak={"fp32": 1 / max(of_flop, 1e-15)}, memory=memory, usable=memory,
        bandwidth=1 / of_byte, units=1, link=link, nic=link, dtype="fp32", host=1 / of_byte,
        per_node=p, cores=max(1, num_cores() // blas_threads()), software=software)


def measure_messages(comm: Communicator, num_rounds: int) -> tuple[float, float, float]:
    """Collective.  Latency of the first message and of each round of a ring; its bytes per second.

    The ring is imaginary: it takes as long as the algorithm that "auto" chooses here.
    """
    if comm.size == 1:
        return 0.0, 0.0, 1e10
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    message = time_messages(comm, num_rounds, lambda array, out: comm.sendrecv(
        array, after, out, before))
    whole = time_messages(comm, num_rounds, lambda array, out: all_reduce(comm, array, out=out))
    rounds = 2 * (comm.size - 1)
    return (message.latency, max(0.0, whole.latency - message.latency) / rounds,
            min(rounds / comm.size * whole.bandwidth, 1e12))


def time_messages(comm: Communicator, num_rounds: int,
                  send: Callable[[np.ndarray, np.ndarray], object]) -> Link:
    """Collective.  Latency and bandwidth, fitted to the seconds of send(array, out) by size."""
    now, times = clock(), np.empty((4 * num_rounds, len(LINK_SIZES)))
    for row in times:
        for j, num_bytes in enumerate(LINK_SIZES):
            array, out = np.zeros((2, num_bytes // 4), np.float32)
            barrier(comm, algorithm="dissemination")
            start = now()
            send(array, out)
            row[j] = now() - start
    usual = all_reduce(comm, np.quantile(times, USUAL, axis=0), algorithm="ring") / comm.size
    turns = max(1.0, comm.size * blas_threads() / num_cores()) if now is time.process_time else 1
    return fit(LINK_SIZES, turns * usual).link


def clock() -> Callable[[], float]:
    """The clock of the measurements: seconds in which this process computes.

    Other programs or ranks on the same core do not count.  With several BLAS threads a rank has
    several cores, and the clock is the wall clock.
    """
    return time.process_time if blas_threads() == 1 else time.perf_counter


def measure_operations(comm: Communicator, num_rounds: int,
                       probes: Sequence[tuple[int, int, int]] = PROBES) -> dict[str, Line]:
    """Collective.  The lines of the operations of small GPTs, timed singly on all ranks at once.

    The time between two operations, for Python and additions of gradients, is shared out among
    them.  What a step does besides forward and backward counts as "AdamW optimizer".
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    for width, context, batch in probes:
        model = GPTConfig(4 * width, context, 2, max(1, width // 32), width)
        rows, seconds, bare = time_probe(comm, model, batch, num_rounds)
        between = max(1.0, bare / sum(seconds))
        for (name, flops, num_bytes), each in zip(rows, seconds):
            found.setdefault(name, []).append((flops, num_bytes, each * between))
    return {name: fit_line(points) for name, points in found.items()}


def time_probe(comm: Communicator, config: GPTConfig, batch: int, num_rounds: int
               ) -> tuple[list[tuple[str, int, int]], list[float], float]:
    """The operations of a step of one rank, their seconds, and those of the bare step."""
    layout = Layout(batch=batch, microbatch=batch, sp=False)
    now = clock()
    mesh = DeviceMesh(DeviceMesh(comm, dp=comm.size).alone, dp=1)
    strategy = make_parallel(layout, GPT(config).initialize(0), mesh)
    optimizer, microbatches = AdamW(strategy.slabs), random_microbatches(config, layout)
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

    rounds = []
    for _ in range(num_rounds + 1):             # the first one warms up
        barrier(comm, algorithm="dissemination")
        bare = run()
        rows.clear()
        seconds.clear()
        with Meter(now, stop).running():
            run()
        start = now()
        optimizer.zero_grad()
        strategy.clip_grad_norm(1.0)
        strategy.step(optimizer)
        rounds.append([*seconds, now() - start, bare])
    size = sum(slab.data.size for slab in strategy.slabs)
    rows.append(("AdamW optimizer", optimizer.flops_per_parameter * size, 0))
    usual = np.quantile(np.array(rounds[1:], np.float64), USUAL, axis=0)
    *each, update, bare = (all_reduce(comm, usual, algorithm="ring") / comm.size).tolist()
    return rows, [*each, update], update + bare


def fit_line(points: Sequence[tuple[float, float, float]]) -> Line:
    """The line through points (flops, bytes, seconds), without negative numbers.

    It has the least sum of squared errors over seconds: a point of 9 s may be 3 times as far off as
    one of 1 s.  A column is used only if it lowers the sum.
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
    return call, flop, byte


def random_microbatches(config: GPTConfig, layout: Layout) -> list[Microbatch]:
    """The microbatches of a rank, each of the same random tokens."""
    shape = layout.microbatch, config.context
    ids = np.random.default_rng(0).integers(0, config.vocab_size, shape)
    return [Microbatch(ids, ids, np.arange(layout.microbatch))] * layout.microbatches


def measured_step(comm: Communicator, config: GPTConfig, layout: Layout, num_rounds: int,
                  now: Callable[[], float] = time.perf_counter) -> float:
    """Collective.  Seconds of a real step of a layout, on the slowest rank: the lower quartile."""
    mesh = DeviceMesh(comm, **mesh_sizes(layout))
    strategy = make_parallel(layout, GPT(config).initialize(0), mesh)
    optimizer, batch = AdamW(strategy.slabs), random_microbatches(config, layout)
    times = []
    for _ in range(num_rounds + 2):             # the first two warm up
        barrier(comm, algorithm="dissemination")
        start = now()
        take_step(strategy, optimizer, batch)
        times.append(now() - start)
    slowest = all_reduce(comm, np.array(times[2:]), op="max", algorithm="ring")
    return float(np.quantile(slowest, USUAL))
