"""The rest of Communicator, beside messages: clock, nodes, trace, progress, MPI's own.

    comm.node      comm.now()      comm.start_trace() … comm.stop_trace()

`communicator.py` has the messages: send, receive, split.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import unknown_name_error

if TYPE_CHECKING:
    from .communicator import Communicator, Request
    from .rank_state import RankState
    from .trace import Trace
    from .work import ProgressEngine


class Instrumentation(ABC):
    """Base of Communicator."""

    rank: int
    group: int
    rank_state: "RankState"
    axes: str = ""      # " over dp, cp" for ranks along axes of a mesh: in the labels of messages

    if not TYPE_CHECKING:       # to a type checker, only what is written here exists
        def __getattr__(self, name: str) -> Any:
            raise unknown_name_error(self, name)

    @staticmethod
    def from_mpi(mpi_comm: Any) -> "Communicator":
        """Collective.  A communicator of the same ranks as `mpi_comm`, any of mpi4py's.

        For programs that use mpi4py themselves: minipar's messages never meet theirs.
        """
        # Loaded here, since only this needs MPI; by name, since that module imports this one.
        return import_module(".mpi.world", __package__).from_mpi(mpi_comm)

    @abstractmethod
    def wait_any(self, requests: "Sequence[Request | None]") -> int:
        """Block until one of this rank's `requests` is done; return its index.

        Entries that are None are skipped.  If several are done, a simulated rank takes the earliest
        in virtual time, a real one the least index.  Works make no progress meanwhile.
        """

    @abstractmethod
    def node_of(self, rank: int) -> int:
        """The number of the node of `rank`: a machine (0, 1, …) whose ranks share memory."""

    @abstractmethod
    def world_rank_of(self, rank: int) -> int:
        """The number of `rank` in the whole world, by which traces know it."""

    @property
    def node(self) -> int:
        """The number of this rank's node."""
        return self.node_of(self.rank)

    @abstractmethod
    def now(self) -> float:
        """Seconds on this rank's clock: virtual time on a simulated cluster, else wall time."""

    @abstractmethod
    def report_compute(self, name: str, flops: int, num_bytes: int, seconds: float) -> None:
        """Report a computation that took `seconds` of wall time.

        It is traced; on a simulated cluster it advances the virtual time.
        """

    @abstractmethod
    def make_progress_engine(self) -> "ProgressEngine":
        """An engine that runs non-blocking collectives on this rank (see `work.py`)."""

    def start_trace(self, replay: bool = False) -> None:
        """Log this rank's messages and computations from now on; with `replay` its program too."""
        self.rank_state.start_trace(self.group, replay)

    def stop_trace(self) -> "Trace | None":
        """Stop logging; return the log, None if there was none."""
        trace = self.rank_state.trace
        self.rank_state.log_to(None)
        return trace
