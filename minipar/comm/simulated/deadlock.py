"""A deadlock of simulated ranks as a sentence: who waits, for what, from whom, at which line."""

from pathlib import Path
from types import FrameType

from .rank import SimulatedRequest

HERE = str(Path(__file__).parents[1])


class Deadlock(RuntimeError):
    """No rank can go on.  `stacks` has for each rank that waits its lines (file, number)."""

    stacks: dict[int, list[tuple[str, int]]] = {}


class Closed(dict):
    """Stands for the queues of a run that is over: a `finally` block must not communicate."""

    def _refuse(self, *args):
        raise RuntimeError("this run is over: its communicators can no longer be used")

    get = pop = setdefault = __setitem__ = _refuse


def lines_of(frame: FrameType | None) -> list[tuple[str, int]]:
    """File and line of each frame of a suspended rank, the innermost first."""
    return [(frame.f_code.co_filename, frame.f_lineno), *lines_of(frame.f_back)] if frame else []


def source_line(frame: FrameType | None, unknown: str = "an unknown line") -> str:
    """The innermost line outside `minipar.comm` of a rank, as file:line; `unknown` without one."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(HERE) and not file.endswith("contextlib.py"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return unknown


def describe_stuck(stuck: list, cluster) -> str:
    """The deadlock of the stuck ranks of a simulated cluster."""
    parts = sorted({getattr(rank.waiting, "label", "") for rank in stuck} - {""})
    advice = ("Every send needs its receive, in an order that lets both be reached: try sendrecv, "
              "or let one rank receive first.")
    if len(parts) > 1:
        advice = (f"Some ranks are in {', others in '.join(parts)}: all ranks call their "
                  "collectives in the same order, also those of several communicators.")
    return "\n  ".join(["deadlock: no rank can go on", *describe_waits(stuck, cluster)]
                       ) + "\n" + advice


def describe_waits(ranks: list, cluster, most: int = 16) -> list[str]:
    """A line for each of these ranks of a simulated cluster: for what it waits, and where."""
    pending = {}
    for kind, requests in (("send to", cluster.sends), ("receive from", cluster.recvs)):
        for (group, source, dest, tag), request in requests.items():
            peer = cluster.groups[group][dest if kind == "send to" else source]
            while request is not None:
                part_of = f", part of {request.label}" if request.label else ""
                gone = ", which has returned," if cluster.ranks[peer].greenlet.dead else ""
                pending[id(request)] = (f"to {kind} rank {peer} (tag {tag}, "
                                        f"{request.array.nbytes} bytes{part_of}){gone}")
                request = request.behind
    lines = []
    for rank in ranks[:most]:
        waiting = rank.waiting
        what = "computes" if waiting is None else f"waits {waiting}"
        if isinstance(waiting, SimulatedRequest):
            what = "waits " + pending.get(id(waiting), "for a message under way")
        lines.append(f"rank {rank.number} {what} at {source_line(rank.greenlet.gr_frame)}")
    if len(ranks) > most:
        lines.append(f"and {len(ranks) - most} more ranks")
    return lines
