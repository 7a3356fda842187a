"""All layouts of a model on a cluster: those that fit, the fastest first.

    for tp, pp, cp, ep      that divide GPUs, heads, sequence, experts; dp is the rest
    for microbatch, v, schedule, kind, remat
        does not fit?  try it with the optimizer's states in the host's memory, else drop it
        seconds by step_time
    for the fastest layout of each of the fastest meshes
        every other schedule, with its own recomputation and with none, up to pp = 16

The second search is for schedules whose tables have to be made.  Of equally fast layouts, the one
with fewer bytes comes first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from ..nn import GPTConfig
from ..parallel.pipeline.schedule.registry import SCHEDULES
from .cluster import ClusterSpec
from .layout import KINDS, Layout, layout_fault
from .memory import memory, total
from .time.stalls import StallRange, stall_range

MOST_MICROBATCH, MOST_TP, MOST_CP, MOST_V = 16, 64, 64, 8
LONG = 16384            # tokens from which context parallelism is tried
MESHES, MOST_PP = 8, 16     # so many of the best meshes get every schedule, up to this pp


class Candidate(NamedTuple):
    """A layout with its prediction."""

    layout: Layout
    stalls: StallRange
    num_bytes: float

    @property
    def seconds(self) -> float:
        """Seconds of a step, in the likelier case (stalls.py)."""
        return self.stalls.seconds


def predict(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> Candidate:
    """Seconds and bytes of a layout."""
    return Candidate(layout, stall_range(cluster, model, layout),
                     total(cluster, memory(cluster, model, layout)))


def search(cluster: ClusterSpec, model: GPTConfig, batch: int) -> tuple[list[Candidate], int]:
    """The layouts that fit, the fastest first; and how many were tried."""
    tried = [*layouts(cluster, model, batch)]
    found = fastest(fitting(cluster, model, tried))
    more = [layout for best in best_of_meshes(found)[:MESHES]
            for layout in other_schedules(best.layout, model)]
    return fastest([*found, *fitting(cluster, model, more)]), len(tried) + len(more)


def fitting(cluster: ClusterSpec, model: GPTConfig, tried: Iterable[Layout]) -> Iterator[Candidate]:
    """The layouts that fit, with offloaded states where they fit only so."""
    for layout in tried:
        for offload in ("", "optimizer"):
            layout = replace(layout, offload=offload)
            num_bytes = total(cluster, memory(cluster, model, layout))
            if num_bytes <= cluster.usable:
                yield Candidate(layout, stall_range(cluster, model, layout), num_bytes)
                break


def fastest(found: Iterable[Candidate]) -> list[Candidate]:
    """The candidates, the fastest first."""
    return sorted(found, key=lambda candidate: (candidate.seconds, candidate.num_bytes))


def other_schedules(layout: Layout, model: GPTConfig) -> Iterator[Layout]:
    """The layout with each schedule that `layouts` leaves out, also without recomputation."""
    known = {schedule for schedule, _ in pipelines_of(layout.pp, 0)}
    if 1 < layout.pp <= MOST_PP:
        for schedule in SCHEDULES:
            for remat in sorted({layout.remat, "none"}):
                other = replace(layout, schedule=schedule, v=1, remat=remat)
                if schedule not in known and not layout_fault(other, model, layout.num_gpus):
                    yield other


def layouts(cluster: ClusterSpec, model: GPTConfig, batch: int) -> Iterator[Layout]:
    """The layouts that are tried: they can run, whether they fit or not."""
    remats = ["none", "full"] if cluster.software.flash else ["none", "selective", "full"]
    for axes in meshes(cluster.num_gpus, model, batch):
        for microbatch in powers(min(MOST_MICROBATCH, batch // axes.dp)):
            for kind in KINDS if axes.dp * axes.cp > 1 else KINDS[:1]:
                for schedule, v in pipelines_of(axes.pp, model.num_layers):
                    for remat in remats:
                        layout = replace(axes, microbatch=microbatch, kind=kind, remat=remat,
                                         schedule=schedule, v=v)
                        if not layout_fault(layout, model, cluster.num_gpus):
                            yield layout


def meshes(num_gpus: int, model: GPTConfig, batch: int) -> Iterator[Layout]:
    """The meshes of that many GPUs whose dp divides the batch."""
    experts = model.experts.num_experts if model.experts else 1
    for tp in divisors(num_gpus, MOST_TP):
        for pp in divisors(num_gpus // tp, model.num_layers):
            for cp in divisors(num_gpus // tp // pp, MOST_CP if model.context >= LONG else 1):
                dp = num_gpus // tp // pp // cp
                if batch % dp == 0:
                    yield from (Layout(dp, tp, pp, cp, ep, sp=tp > 1, batch=batch)
                                for ep in divisors(dp, experts))


def pipelines_of(pp: int, num_layers: int) -> Iterator[tuple[str, int]]:
    """Schedules and numbers of stages on each rank."""
    yield "1f1b", 1
    if pp > 1:
        yield "zb_h1", 1
        yield from (("interleaved", v) for v in powers(MOST_V)
                    if v > 1 and num_layers % (pp * v) == 0)


def divisors(number: int, most: int) -> list[int]:
    """The divisors of a number, up to `most`."""
    return [k for k in range(1, min(number, most) + 1) if number % k == 0]


def powers(most: int) -> list[int]:
    """1, 2, 4, … up to `most`."""
    return [1 << k for k in range(max(1, most).bit_length())]


def best_of_meshes(found: list[Candidate]) -> list[Candidate]:
    """The first candidate of each mesh, in the same order."""
    first: dict[tuple[int, ...], Candidate] = {}
    for candidate in found:
        layout = candidate.layout
        first.setdefault((layout.dp, layout.tp, layout.pp, layout.cp, layout.ep), candidate)
    return [*first.values()]


def frontier(found: list[Candidate], step: float = 0.05) -> list[Candidate]:
    """The candidates that need less memory than all faster ones; `found` has the fastest first.

    Each needs less than the one before by more than the share `step`.
    """
    chosen: list[Candidate] = []
    for candidate in found:
        if not chosen or candidate.num_bytes < (1 - step) * chosen[-1].num_bytes:
            chosen.append(candidate)
    return chosen
