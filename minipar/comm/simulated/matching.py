"""A message is two requests, a send and a receive, which meet here; the first waits for the other.

    cluster.sends    (group, source, dest, tag) ─▶ send ─▶ the send behind it ─▶ …
    cluster.recvs    (group, source, dest, tag) ─▶ receive ─▶ …

The first half stands in line (`stand_in_line`).  The second takes it out of the line (`take`), and
copies the bytes straight from the sender's array into the receiver's (`deliver`):

    start = the latest of: send posted, receive posted, sender's port free, receiver's port free
    left  = start + bytes / bandwidth            the ports are free again
    end   = left + latency                       both halves are done

So a send blocks at any size until it is received (*rendezvous*), and no message is buffered, unless
the cluster is told so (`eager`).
"""

from typing import Any

from ...backend import Array
from ..errors import check_place
from ..trace import POLL
from .rank import Rank


class SimulatedRequest:
    """Half a message; it ends at the virtual time `ended_at`, None until both halves have met."""

    __slots__ = ("rank", "array", "label", "posted", "ended_at", "behind", "action")

    def __init__(self, rank: Rank, array: Array, label: str):
        self.rank, self.array, self.label, self.posted = rank, array, label, rank.clock
        self.ended_at: Any = None
        self.behind: Any = None                         # the next request of the same key
        self.action: int | None = None                  # its index in the rank's program, if logged

    def renew(self, array: Array, label: str, posted: float) -> "SimulatedRequest":
        """This object as the request of a new message."""
        self.array, self.label, self.posted, self.ended_at = array, label, posted, None
        return self

    def stand_in_line(self, queue: dict, key: tuple) -> None:
        """Join `queue` until the other half comes, behind earlier requests of the same key."""
        request = queue.setdefault(key, self)
        if request is not self:
            while request.behind is not None:
                request = request.behind
            request.behind = self

    def finish(self, end: float) -> None:
        """Both halves have met, and end at `end`: wake the rank if it waits for this one."""
        self.ended_at, rank = end, self.rank
        if rank.waiting is self:
            rank.ready[end].append(rank.turn)

    def wait(self) -> None:
        """Block this rank, but not the process, until both halves have met."""
        rank = self.rank
        if rank.actions is not None:
            rank.log("wait", self.action)
        if self.ended_at is None:
            rank.block(self)
        if self.ended_at > rank.clock:
            rank.clock = self.ended_at

    def test(self) -> bool:
        """True if it is done.  If asked twice at one virtual time, it waits first."""
        rank = self.rank
        rank.log(*POLL)
        if self.ended_at is None or self.ended_at > rank.clock:
            if rank.asks_again():
                self.wait()
            else:
                rank.give_way()
        return self.peek()

    def peek(self) -> bool:
        """True if it is done; no virtual time passes."""
        return self.ended_at is not None and self.ended_at <= self.rank.clock


def take(queue: dict, key: tuple) -> Any:
    """Take the first request of `key` out of `queue`; None if none stands there."""
    first = queue.pop(key, None)
    if first is not None and first.behind is not None:
        queue[key] = first.behind
    return first


def deliver(cluster: Any, source: Rank, array: Array, label: str, sent: float, dest: Rank,
            out: Array, posted: float) -> float:
    """Copy `array` into `out`; return the virtual time when that is done.

    `source` has been sending since `sent`, `dest` receiving since `posted`.
    """
    num_bytes = array.nbytes
    if array.dtype is not out.dtype and array.dtype != out.dtype or out.nbytes != num_bytes:
        raise message_mismatch_error(source, array, dest, out)
    try:
        out[...] = array
    except ValueError:              # as many elements, in a different shape; or it is read-only
        check_place(out, f"the array that rank {dest.world_rank} receives into")
        out[...] = array.reshape(out.shape)
    start = posted if posted > sent else sent       # comparisons: four times as fast as max()
    if source.port_out > start:
        start = source.port_out
    if dest.port_in > start:
        start = dest.port_in
    left = start + num_bytes * cluster.seconds_per_byte
    end = left + cluster.latency
    if cluster.links is not None:
        left, end = cluster.links.carry(source.world_rank, dest.world_rank, num_bytes, start)
    source.port_out = dest.port_in = left
    if source.messages is not None:
        source.messages.append((source.world_rank, dest.world_rank, num_bytes, label, sent, start,
                                end))
    return end


def message_mismatch_error(source: Rank, array: Array, dest: Rank, out: Array) -> ValueError:
    """The error of a receive whose array does not fit the message."""
    return ValueError(message_mismatch(source.world_rank, f"{array.dtype} {array.shape}",
                                       dest.world_rank, f"{out.dtype} {out.shape}"))


def message_mismatch(source: int, sent: str, dest: int, expected: str) -> str:
    """The sentence about a message of dtype and shape `sent` that `dest` does not expect."""
    return (f"rank {dest} receives into {expected}, but rank {source} sends {sent}: sizes and "
            "dtypes must be equal")
