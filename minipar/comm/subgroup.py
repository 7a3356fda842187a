"""Some of a communicator's ranks, renumbered: a group that needs no message to be made.

    ranks of comm           0  1  2  3  4  5
    Subgroup(comm, [4, 2])        1     0          algorithms run on it unchanged

Unlike the result of `split`, a Subgroup only renumbers ranks: its messages are messages of `comm`.
"""

from collections.abc import Sequence
from typing import Any

from ..backend import Array
from .communicator import Communicator, Request
from .work import ProgressEngine


class Subgroup(Communicator):
    """The ranks `members` of `comm`; this rank must be one of them, and members[0] is number 0."""

    def __init__(self, comm: Communicator, members: Sequence[int]):
        self.comm, self.members = comm, members
        self.rank, self.size = members.index(comm.rank), len(members)
        self.world_rank, self.is_simulated = comm.world_rank, comm.is_simulated
        self.rank_state = comm.rank_state
        self.own_algorithms = comm.own_algorithms

    def isend(self, array: Array, dest: int, tag: int = 0) -> Request:
        """Begin to send `array`."""
        return self.comm.isend(array, self.members[dest], tag)

    def irecv(self, out: Array, source: int, tag: int = 0) -> Request:
        """Begin to receive into `out`."""
        return self.comm.irecv(out, self.members[source], tag)

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """Send to `dest` while receiving from `source`."""
        self.comm.sendrecv(array, self.members[dest], out, self.members[source], tag)

    def wait_any(self, requests: Sequence[Request | None]) -> int:
        """Block until one of the requests is done; return its index."""
        return self.comm.wait_any(requests)

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """Not supported, raises TypeError: a split needs all ranks of the communicator."""
        raise TypeError("a Subgroup cannot be split: split the communicator that it is part of")

    def node_of(self, rank: int) -> int:
        """The number of the node of `rank`."""
        return self.comm.node_of(self.members[rank])

    def world_rank_of(self, rank: int) -> int:
        """The number of `rank` in the whole world."""
        return self.comm.world_rank_of(self.members[rank])

    def now(self) -> float:
        """Seconds on this rank's clock."""
        return self.comm.now()

    def report_compute(self, name: str, flops: int, num_bytes: int, seconds: float) -> None:
        """Report a computation."""
        self.comm.report_compute(name, flops, num_bytes, seconds)

    def choose(self, operation: str, num_bytes: int) -> str | None:
        """The algorithm that the whole communicator chooses."""
        return self.comm.choose(operation, num_bytes)

    def make_progress_engine(self) -> ProgressEngine:
        """Not supported, raises TypeError: a Work needs messages of its own."""
        raise TypeError("a Subgroup has no messages of its own: start the Work on a communicator")


def rooted(comm: Communicator, root: int) -> Communicator:
    """The same ranks counted from `root`, which becomes number 0."""
    return Subgroup(comm, [*range(root, comm.size), *range(root)]) if root else comm


def power_of_two(comm: Communicator) -> tuple[Communicator | None, Any]:
    """(core, partner): the core has 2^⌊log₂ p⌋ ranks, and each other rank has a partner in it.

        p = 6      0 ◀─ 1     2 ◀─ 3     4     5         core: 0 2 4 5

    The odd ones among the first 2(p - 2^⌊log₂ p⌋) ranks stand aside.  For them `core` is None, and
    `partner` is the rank to the left, which represents them.  `partner` is None for a rank without
    one.
    """
    extra = comm.size - (1 << (comm.size.bit_length() - 1))
    partner = comm.rank ^ 1 if comm.rank < 2 * extra else None
    if partner is not None and comm.rank % 2:
        return None, partner
    return (Subgroup(comm, core_ranks(comm.size)) if extra else comm), partner


def core_ranks(p: int) -> list[int]:
    """The ranks of the core of `p` ranks, as `power_of_two` picks them."""
    extra = p - (1 << (p.bit_length() - 1))
    return [*range(0, 2 * extra, 2), *range(2 * extra, p)]
