"""The process of a real rank: what its communicators share, and what it waits for now."""

from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..communicator import RankState

if TYPE_CHECKING:
    from ..cost.calibration import Calibration
    from .communicator import MPICommunicator
    from .guardian import Guardian


class Waiting:
    """Context of one wait.  A class, since @contextmanager would take longer than a message."""

    __slots__ = ("process", "description", "peers")

    def __init__(self, process: "Process", description: tuple, peers: Sequence[int]):
        self.process, self.description, self.peers = process, description, peers

    def __enter__(self) -> None:
        self.process.waiting = self.description, self.peers

    def __exit__(self, *error: object) -> None:
        self.process.waiting = None


class Process(RankState):
    """The state that all communicators of one process share.

    `waiting` is the current wait, (description, peers), or None.  It is a new tuple for each wait,
    by which the watchdog's thread tells a new wait from an old one.  So no wait reads the clock.
    """

    def __init__(self, MPI: Any, rank: int, size: int):
        super().__init__(rank)
        self.status = MPI.Status()          # of the message that ended last
        self.nodes = [0] * size             # the node of each rank of the world
        self.waiting: tuple[tuple, Sequence[int]] | None = None
        self.program: FrameType | None = None   # of a wait for a Work: the program's frame
        self.guardian: Guardian | None = None   # reports this rank if it dies
        self.calibration: Calibration | None = None     # of the machine; the same on all ranks
        self.record: Any = None             # what is noted under MINIPAR_CHECK=1 (check/)
        self.num_groups = 0                 # how many communicators this process made
        self.splits: list[MPICommunicator] = []     # made by split() and not yet freed

    def wait_for(self, description: tuple, peers: Sequence[int]) -> Waiting:
        """Context of one wait; description is (kind, peer, tag, bytes, label).

        `peers` are the world numbers of the ranks that it needs.
        """
        return Waiting(self, description, peers)
