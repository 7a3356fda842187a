"""The costs of a pipeline, from its timeline: idle time, memory and messages.

    rank 0  ▐F▌▐F▌▐F▌▐F▌····▐ B ▌ ▐ B ▌       bubble: the share of the total that is idle (·), or
            1  2  3  4  4  4  4  3  3  2      idle time / time at work ("of the ideal")
                                              below: microbatches in flight

A microbatch is in flight on a stage from the start of its forward to the end of its B or W.  The
stage keeps the microbatch's activations all that time.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .actions import BACKWARD, FORWARD, WEIGHT, Action, Placement
from .timeline import Timeline


class Bubble(NamedTuple):
    """Idle time as a share of all ranks' time, and of the time in which they work."""

    of_total: float
    of_ideal: float


def bubble(timeline: Timeline) -> Bubble:
    """The idle share of a timeline that has actions.

    The ranks' time, ranks × makespan, is work + idle.  Of this total the share is idle / (work +
    idle).  Of the ideal, ranks that always work, it is idle / work.
    """
    total = timeline.num_ranks * timeline.makespan()
    work = sum(interval.end - interval.start for interval in timeline.intervals)
    return Bubble((total - work) / total, (total - work) / work)


def in_flight(row: Sequence[Action]) -> list[int]:
    """The number of microbatches in flight on one rank during each action of its row.

    A microbatch in flight on two stages of the rank counts twice.
    """
    # F adds one; B or W frees one, but needs it while it runs
    counts, kept = [], 0
    for action in row:
        kept += action.kind == FORWARD
        counts.append(kept)
        kept -= action.kind in (BACKWARD, WEIGHT)
    return counts


def memory(timeline: Timeline, rank: int,
           activation_bytes: float | Sequence[float] = 1) -> list[tuple[float, float]]:
    """Bytes of activations on `rank` over time: (time, bytes from then on), from the first action.

    `activation_bytes` are the bytes of one microbatch on a stage, or a list with one value per
    stage.  With 1 the result is the number of microbatches in flight.
    """
    steps, now = [(timeline.first(), 0.0)], 0.0
    for interval in timeline.row(rank):
        change = (activation_bytes if isinstance(activation_bytes, int | float)
                  else activation_bytes[interval.stage])
        if interval.kind == FORWARD:
            now += change
            steps.append((interval.start, now))
        elif interval.kind in (BACKWARD, WEIGHT):
            now -= change
            steps.append((interval.end, now))
    return steps


def peak_memory(timeline: Timeline, rank: int,
                activation_bytes: float | Sequence[float] = 1) -> float:
    """The peak bytes of activations on `rank`; see `memory`."""
    return max(amount for _, amount in memory(timeline, rank, activation_bytes))


def num_messages(placement: Placement, num_microbatches: int) -> int:
    """The messages of one batch: an activation and a gradient over each boundary between ranks."""
    boundaries = sum(a != b for a, b in zip(placement, placement[1:]))
    return 2 * num_microbatches * boundaries
