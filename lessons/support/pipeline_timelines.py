"""Lessons 12 and 13: times of a measured timeline, and timelines predicted from such times."""

from statistics import median

from minipar.comm import Communicator
from minipar.comm.collectives import sum_over_ranks
from minipar.comm.simulated.links import Link
from minipar.parallel.pipeline.schedule.dependencies import OPS, needs
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.pipeline.schedule.simulate import FREE_LINK, Times, simulate
from minipar.parallel.pipeline.schedule.timeline import Timeline

from .pipeline_runs import Run


def times_of(timeline: Timeline) -> list[Times]:
    """Times of forward and backward of each stage: medians over its microbatches.

    A backward that is not split counts as the gradient of the input.
    """
    taken: dict[tuple[int, str], list[float]] = {}
    for i in timeline.intervals:
        taken.setdefault((i.stage, i.kind), []).append(i.end - i.start)
    return [Times(median(taken[s, "F"]), median(taken.get((s, "B")) or taken[s, "I"]),
                  median(taken.get((s, "W"), [0]))) for s, kind in sorted(taken) if kind == "F"]


def typical(timeline: Timeline) -> Times:
    """Each stage's shortest time for a microbatch, so without waiting; the median over stages.

    A backward that is not split counts as the gradient of the input.
    """
    def seconds(*kinds: str) -> float:
        least = [min((i.end - i.start for i in row if i.kind in kinds), default=0.0)
                 for row in timeline.rows()]
        return median(least)
    return Times(seconds("F"), seconds("I", "B"), seconds("W"))


def from_rank_0(comm: Communicator, value: float | None) -> float:
    """Rank 0's number, on every rank."""
    return sum_over_ranks(comm, 0.0 if value is None else value)


def milliseconds(comm: Communicator, timeline: Timeline | None) -> float:
    """Collective.  The length of rank 0's timeline in ms, on every rank."""
    return 1e3 * from_rank_0(comm, None if timeline is None else timeline.makespan())


def replay(comm: Communicator, name: str, num_microbatches: int, measured: Timeline,
           num_bytes: int) -> Timeline:
    """A schedule, simulated with the times of the stages in `measured` and messages of `num_bytes`.

    On simulated ranks with each time and the cluster's links, on real ones with the shortest times
    and links that take no time.
    """
    schedule, placement = make_schedule(name, comm.size, num_microbatches)
    if not comm.is_simulated:
        return simulate(schedule, typical(measured), placement, FREE_LINK, num_bytes)
    link = Link(comm.cluster.latency, comm.cluster.bandwidth)
    return simulate(schedule, times_of(measured), placement, link, num_bytes)


def played(name: str, p: int, m: int, times: Times | list[Times] | None = None,
           link: Link = FREE_LINK, num_bytes: int = 0, num_steps: int = 1) -> Timeline:
    """The simulated timeline of a schedule that runs `num_steps` times.

    Stages take equally long unless `times` are given.
    """
    schedule, placement = make_schedule(name, p, m)
    rows = [[action._replace(microbatch=action.microbatch + step * m)
             for step in range(num_steps) for action in row] for row in schedule]
    stages_per_rank = len(placement) // p
    return simulate(rows, times or Times().shared(stages_per_rank), placement, link, num_bytes)


def too_early(comm: Communicator, one: Run) -> int:
    """The number of actions, on all ranks, that started before everything they need was done."""
    found = 0
    if one.timeline:
        done = {(kind, i.stage, i.microbatch): i.end for i in one.timeline.intervals
                for kind in OPS[i.kind]}
        found = sum(done[need] > i.start for i in one.timeline.intervals
                    for need in needs(i.action, len(one.strategy.stages)))
    pipeline = one.strategy.pipeline
    assert [i.action for i in pipeline.intervals] == pipeline.rank_schedule(2 * comm.size).row
    return int(sum_over_ranks(comm, found))


def one_clock(comm: Communicator) -> bool:
    """True if all ranks share a clock: real ranks on several machines do not."""
    nodes = {comm.node_of(rank) for rank in range(comm.size)}
    return comm.is_simulated or len(nodes) == 1
