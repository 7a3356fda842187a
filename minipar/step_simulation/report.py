"""Numbers of a simulated step: speed, where its seconds go, bytes of the fullest rank."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from ..parallel.pipeline.schedule.timeline import Interval, Timeline
from ..plan.models import model_flops
from .rank_log import IDLE
from .step import RankStep, SimulatedStep

COMPUTING = {"forward": "forward", "backward": "backward: inputs", "weights": "backward: weights",
             "again": "recomputation", "both": "loss", "optimizer": "optimizer",
             "launch": "launching collectives", "host": "moving offloaded states"}


def speed(step: SimulatedStep) -> dict[str, float]:
    """FLOP/s of a GPU by the model's formula (MFU), and those that ran (HFU); tokens/s; bubble."""
    cluster, tokens = step.cluster, step.layout.batch * step.model.context
    each = step.seconds * cluster.num_gpus
    ran = sum(rank.log.flops * step.num_ranks_of[number] for number, rank in step.ranks.items())
    useful = model_flops(step.model, tokens) / each
    return {"FLOP/s per GPU": useful, "MFU": useful / cluster.rate,
            "HFU": ran / each / cluster.rate,
            "tokens/s per GPU": tokens / each, "bubble": parts(step)[IDLE] / step.seconds}


def parts_of_rank(step: SimulatedStep, rank: RankStep) -> dict[str, float]:
    """Seconds of a rank by what it did: computing, waiting for messages of an axis, idle time.

    They add up to the step.  All other seconds, such as waits for non-blocking collectives, count
    as "dp".
    """
    log, found = rank.log, Counter[str]()
    for phase, seconds in log.computing.items():
        found[COMPUTING[phase]] += seconds
    found[IDLE] = log.waiting[IDLE]
    for axis, seconds in log.waiting.items():
        if axis != IDLE:
            name = "waiting for the norm" if axis == "control" else f"messages: {axis}"
            found[name] += seconds
    found["messages: dp"] += step.seconds - sum(found.values())
    return found


def parts(step: SimulatedStep) -> dict[str, float]:
    """The mean of `parts_of_rank` over all ranks."""
    found = Counter[str]()
    for number, rank in step.ranks.items():
        share = step.num_ranks_of[number] / len(step.stands_for)
        for name, seconds in parts_of_rank(step, rank).items():
            found[name] += seconds * share
    return found


def fullest(step: SimulatedStep) -> tuple[int, dict[str, int]]:
    """The rank with the highest peak, and its bytes by kind at that time."""
    number = max(step.ranks, key=lambda rank: sum(step.ranks[rank].memory.values()))
    return number, step.ranks[number].memory


def rank_maps(step: SimulatedStep) -> Mapping[str, np.ndarray]:
    """For each rank (pp, dp·cp·tp): share of the step that it computes, and its peak in GiB."""
    names = {*COMPUTING.values()}
    shares = {number: sum(seconds for name, seconds in parts_of_rank(step, rank).items()
                          if name in names) / step.seconds for number, rank in step.ranks.items()}
    peaks = {number: sum(rank.memory.values()) / 2**30 for number, rank in step.ranks.items()}
    return {title: np.array([of[rank] for rank in step.stands_for]).reshape(step.layout.pp, -1)
            for title, of in (("share of the step that a rank computes", shares),
                              ("peak of memory, GiB", peaks))}


def pipeline_timeline(step: SimulatedStep, column: int = 0) -> Timeline:
    """The actions of the ranks of one pipeline: those of rank `column` of each stage."""
    width = len(step.stands_for) // step.layout.pp
    numbers = [stage * width + column for stage in range(step.layout.pp)]
    found = [Interval(stage, *interval[1:]) for stage, number in enumerate(numbers)
             for interval in step.ranks[step.stands_for[number]].intervals]
    return Timeline(step.layout.pp, found, world_ranks=numbers)
