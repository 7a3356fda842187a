"""Some of a communicator's ranks, renumbered: a group without a message.

    ranks of comm        0  1  2  3  4  5
    Part(comm, [4, 2])         1     0          algorithms run on it unchanged

Unlike `split` it is nothing but arithmetic: its messages are the communicator's own.
"""

from collections.abc import Sequence

from ..backend import Array
from .communicator import Communicator, Request


class Part(Communicator):
    """The ranks `members` of `comm`, of which this rank must be one; members[0] is number 0."""

    def __init__(self, comm: Communicator, members: Sequence[int]):
        self.comm, self.members = comm, members
        self.rank, self.size = members.index(comm.rank), len(members)
        self.world_rank = comm.world_rank

    def isend(self, array: Array, dest: int, tag: int = 0) -> Request:
        """See Communicator."""
        return self.comm.isend(array, self.members[dest], tag)

    def irecv(self, out: Array, source: int, tag: int = 0) -> Request:
        """See Communicator."""
        return self.comm.irecv(out, self.members[source], tag)

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """See Communicator."""
        self.comm.sendrecv(array, self.members[dest], out, self.members[source], tag)

    def node_of(self, rank: int) -> int:
        """See Communicator."""
        return self.comm.node_of(self.members[rank])

    def world_rank_of(self, rank: int) -> int:
        """See Communicator."""
        return self.comm.world_rank_of(self.members[rank])


def rooted(comm: Communicator, root: int) -> Communicator:
    """The same ranks counted from `root`, which becomes number 0."""
    return Part(comm, [*range(root, comm.size), *range(root)]) if root else comm


def power_of_two(comm: Communicator) -> tuple[Communicator | None, int | None]:
    """(the core, this rank's partner): as many ranks as the largest power of two, and who helps.

        p = 6      0 ◀─ 1     2 ◀─ 3     4     5         core: 0 2 4 5

    Of the first 2(p - 2^⌊log₂ p⌋) ranks the odd ones stand aside (core None), each represented by
    its partner to the left.  The others have no partner (None).
    """
    extra = comm.size - (1 << (comm.size.bit_length() - 1))
    partner = comm.rank ^ 1 if comm.rank < 2 * extra else None
    if partner is not None and comm.rank % 2:
        return None, partner
    return (Part(comm, core_ranks(comm.size)) if extra else comm), partner


def core_ranks(p: int) -> list[int]:
    """The ranks of the core of `p` ranks."""
    extra = p - (1 << (p.bit_length() - 1))
    return [*range(0, 2 * extra, 2), *range(2 * extra, p)]
