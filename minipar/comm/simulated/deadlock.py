"""The report of a deadlock: which rank waits for what, from which peer, at which line.

`Cluster.run` finds the deadlock: ranks that wait, and none that can go on.
"""

from types import FrameType
from typing import Any

from ..communicator import source_line
from .matching import SimulatedRequest
from .mismatch import CollectiveMismatch, describe_mismatch
from .rank import Rank


class Deadlock(RuntimeError):
    """No rank can continue.  `stacks` maps each waiting rank to its lines (file, number)."""

    stacks: dict[int, list[tuple[str, int]]] = {}


def lines_of(frame: FrameType | None) -> list[tuple[str, int]]:
    """File and line of each frame of a suspended rank, the innermost first."""
    return [(frame.f_code.co_filename, frame.f_lineno), *lines_of(frame.f_back)] if frame else []


def raise_cause(stuck: list[Rank], cluster: Any) -> None:
    """Raise CollectiveMismatch if calls differ, else Deadlock if ranks are stuck."""
    differ = [calls for calls in cluster.calls.values() if calls.differ]
    if not stuck and not differ:
        return
    error = (CollectiveMismatch(describe_mismatch(differ[0])) if differ else
             Deadlock(describe_stuck(stuck, cluster)))
    error.stacks = {rank.world_rank: lines_of(rank.greenlet.gr_frame) for rank in stuck}
    raise error


def describe_stuck(stuck: list[Rank], cluster: Any) -> str:
    """The report of a deadlock: a line for each stuck rank, and advice."""
    labels = {getattr(rank.waiting, "label", "") for rank in stuck}
    return deadlock_sentence("no rank can go on", describe_waits(stuck, cluster), labels)


def deadlock_sentence(what: str, lines: list[str], labels: set[str]) -> str:
    """The report: a line for each rank, and advice; `labels` are the collectives they are in."""
    collectives = sorted(labels - {""})
    advice = ("Every send needs its receive, in an order that lets both be reached: try sendrecv, "
              "or let one rank receive first.")
    if len(labels) == len(collectives) == 1:
        advice = f"All ranks of a communicator call {collectives[0]}, equally often."
    if len(collectives) > 1:
        advice = (f"Some ranks are in {', others in '.join(collectives)}: all ranks call their "
                  "collectives in the same order, also those of several communicators.")
    return "\n  ".join([f"deadlock: {what}", *lines]) + "\n" + advice


def message_wait(kind: str, peer: int, tag: int, num_bytes: int, label: str) -> str:
    """A message that a rank waits for; `kind` is "send to" or "receive from"."""
    part_of = f", part of {label}" if label else ""
    return f"to {kind} rank {peer} (tag {tag}, {num_bytes} bytes{part_of})"


def describe_waits(ranks: list[Rank], cluster: Any, most: int = 16) -> list[str]:
    """A line for each of these ranks: what it waits for, and at which line of the program."""
    pending = {}
    for kind, requests in (("send to", cluster.sends), ("receive from", cluster.recvs)):
        for (group, source, dest, tag), request in requests.items():
            peer = cluster.groups[group][dest if kind == "send to" else source]
            while request is not None:
                gone = ", which has returned," if cluster.ranks[peer].greenlet.dead else ""
                pending[id(request)] = message_wait(kind, peer, tag, request.array.nbytes,
                                                    request.label) + gone
                request = request.behind
    lines = []
    for rank in ranks[:most]:
        waiting = rank.waiting
        what = "computes" if waiting is None else f"waits {waiting}"
        if isinstance(waiting, SimulatedRequest):
            what = "waits " + pending.get(id(waiting), "for a message under way")
        lines.append(f"rank {rank.world_rank} {what} at {source_line(rank.greenlet.gr_frame)}")
    if len(ranks) > most:
        lines.append(f"and {len(ranks) - most} more ranks")
    return lines
