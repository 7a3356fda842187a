"""A deadlock of simulated ranks as a sentence: who waits, for what, from whom, at which line."""

from pathlib import Path
from types import FrameType

from .request import Split

HERE = str(Path(__file__).parent)


Lines = list[tuple[str, int]]       # file and line of each frame of a rank, the innermost first


class Deadlock(RuntimeError):
    """No rank can go on.  `stacks` says for each rank that waits where it does."""

    def __init__(self, message: str, stacks: dict[int, Lines] | None = None):
        super().__init__(message)
        self.stacks = stacks or {}


class Closed(dict):
    """Stands for the queues of a run that is over: a `finally` block must not communicate."""

    def _refuse(self, *args):
        raise RuntimeError("this run is over: its communicators can no longer be used")

    pop = setdefault = __setitem__ = _refuse


def source_line(frame: FrameType | None) -> str:
    """The innermost line outside `minipar.comm` of a suspended rank, as file:line."""
    while frame is not None and (frame.f_code.co_filename.startswith(HERE)
                                 or frame.f_code.co_filename.endswith("contextlib.py")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "an unknown line"


def lines_of(frame: FrameType | None) -> Lines:
    """The lines at which a suspended rank stands, the innermost first."""
    lines = []
    while frame is not None:
        lines.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return lines


def describe_stuck(stuck: list, cluster) -> str:
    """The deadlock of the stuck ranks of a simulated cluster."""
    parts = sorted({getattr(rank.waiting, "label", "") for rank in stuck} - {""})
    advice = ("Every send needs its receive, in an order that lets both be reached: try sendrecv, "
              "or let one rank receive first.")
    if len(parts) > 1:
        advice = (f"Some ranks are in {', others in '.join(parts)}: all ranks of a communicator "
                  "call the same collectives in the same order.")
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
        what = "waits " + pending.get(id(waiting), "for a message under way")
        if isinstance(waiting, Split):
            what = f"waits {waiting}"
        elif waiting is None:
            what = "computes"
        lines.append(f"rank {rank.number} {what} at {source_line(rank.greenlet.gr_frame)}")
    if len(ranks) > most:
        lines.append(f"and {len(ranks) - most} more ranks")
    return lines
