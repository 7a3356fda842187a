"""The closed forms of the papers, each where it holds: links that take no time, equal stages.

    F, B = I + W     seconds of one stage, of the p·v stages on p ranks; m microbatches
    ideal            v m (F + B): a rank that never waits

    gpipe, 1f1b                           (m + p - 1)(F + B)
    interleaved, looped_breadth_first     (v m + p - 1)(F + B)                         m >= p
    zb_h1                                 m (F + B) + (p - 1)(F + I - W)               m >= p,
                                                                                W <= min(F, I)
    zb_v                                  (6 m + p - 1) F                      m >= p, F = I = W
So the bubble of 1F1B is (p - 1) / m of the ideal, interleaved (p - 1) / (v m).  Everywhere else
there is `lower_bound`, which nothing that is placed so can beat.

Narayanan et al. 2021; Lamy-Poirier 2023; Qi et al. 2023.
"""

from collections import defaultdict
from collections.abc import Sequence

from ..parallel.pipeline.schedule.schedules import Placement
from ..parallel.pipeline.schedule.simulate import Times


def makespan(name: str, num_ranks: int, num_microbatches: int, times: Times,
             virtual_stages: int = 1) -> float | None:
    """Seconds that schedule `name` takes, by its formula; None where it has none.

    `times` are those of one stage, `virtual_stages` on each rank.
    """
    p, m, v = num_ranks, num_microbatches, virtual_stages
    forward, input, weight = times
    both = forward + input + weight
    if p == 1:
        return v * m * both
    if name in ("gpipe", "1f1b"):
        return (m + p - 1) * both
    if name in ("interleaved", "looped_breadth_first") and m >= p:
        return (v * m + p - 1) * both
    if name == "zb_h1" and m >= p and weight <= min(forward, input):
        return m * both + (p - 1) * (forward + input - weight)
    if name == "zb_v" and m >= p and forward == input == weight:
        return (6 * m + p - 1) * forward
    return None


def in_flight(name: str, rank: int, num_ranks: int, num_microbatches: int,
              virtual_stages: int = 1) -> int | None:
    """The most microbatches that are in flight on a rank, each stage's counted; None if unknown.

    That of "interleaved" with its smallest groups, which have p microbatches where p divides m.
    """
    p, m, v = num_ranks, num_microbatches, virtual_stages
    if name in ("gpipe", "looped_breadth_first"):
        return m * v
    if name == "1f1b":
        return min(p - rank, m)
    if name == "interleaved" and m % p == 0:
        return min(2 * (p - rank - 1) + (v - 1) * p + 1, m * v)
    if name == "zb_h1":
        return min(p, m)
    return None


def lower_bound(placement: Placement, num_microbatches: int, times: Times | Sequence[Times],
                split: bool = False) -> float:
    """Seconds that no schedule with this placement can do without, on links that take no time.

    A rank cannot begin before a forward has come down to one of its stages; then it has its work
    to do; and when its last action is a B, that has to go down to stage 0 (`split`: it may be a W,
    for which nobody waits).  A microbatch takes its way there and back.
    """
    num_stages = len(placement)
    each = [times] * num_stages if isinstance(times, Times) else list(times)
    ahead, behind = [0.0], [0.0]            # before a stage: seconds of forwards, of backwards
    for time in each:
        ahead.append(ahead[-1] + time.forward)
        behind.append(behind[-1] + time.input + (0 if split else time.weight))
    way = ahead[-1] + behind[-1] + (each[0].weight if split else 0)
    bounds, stages_of = [way], defaultdict(list)
    for stage, rank in enumerate(placement):
        stages_of[rank].append(stage)
    for mine in stages_of.values():
        work = num_microbatches * sum(sum(each[stage]) for stage in mine)
        after = 0.0 if split else min(behind[stage] for stage in mine)
        bounds.append(min(ahead[stage] for stage in mine) + work + after)
    return max(bounds)
