"""The Communicator: every byte that reaches another rank goes through it.

    comm.send(array, dest=1)          comm.recv(out, source=0)

A program is a function main(comm).  It runs unchanged on real MPI processes (`mpi/`) and on a
simulated cluster inside one process (`simulated/`).  Messages between two ranks with the same tag
arrive in the order in which they were sent.  A send may block until it is received, at any size
(*rendezvous*).  Real MPI usually buffers short messages, so a program that relies on buffering
hangs only with long ones.  The simulated cluster by default buffers none, and reports the deadlock
at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..backend import Array
from .errors import MPI4PY_NAMES, OtherName, no_communicator_error, no_rank_error
from .trace import Trace

if TYPE_CHECKING:
    from .work import ProgressEngine

HERE = str(Path(__file__).parent)


class Request(Protocol):
    """A send or receive that has begun.  Its array must not be touched before `wait` returns."""

    def wait(self) -> None:
        """Block until it is done."""

    def test(self) -> bool:
        """True if it is done.  A simulated rank that asks twice at one virtual time waits first."""
        ...

    def peek(self) -> bool:
        """Like `test`, but no virtual time passes: on a simulated rank a loop of it never ends."""
        ...


class Labelled:
    """The context of `Communicator.labelled`.

    A class, since @contextmanager would cost as much time as sending a small message.
    """

    __slots__ = ("comm", "label", "outer")

    def __init__(self, comm: "Communicator", label: str):
        self.comm, self.label = comm, label

    def __enter__(self) -> None:
        self.outer = self.comm.label
        self.comm.label = self.outer or self.label

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.comm.label = self.outer


class OwnAlgorithm(NamedTuple):
    """An algorithm that only some communicators have, such as the MPI library's own.

    `competes` tells whether "auto" may take it on a communicator.
    """

    run: Callable[..., None]
    competes: Callable[[Any], bool]


class RankState:
    """A rank: its number in the world, its Works (non-blocking collectives) and its trace."""

    __slots__ = ("world_rank", "engine", "trace", "messages", "actions")

    world_rank: int
    engine: Any                     # runs non-blocking collectives, if any (see work.py)
    trace: Trace | None             # None while not tracing
    messages: list[tuple] | None    # those of the trace
    actions: list[tuple] | None     # the rank's program, if the trace keeps it

    def __init__(self, world_rank: int, trace: Trace | None = None):
        self.world_rank, self.engine = world_rank, None
        self.log_to(trace)

    def start_trace(self, group: int, replay: bool) -> None:
        """Log from now on; with `replay` also the program, whose world has the number `group`."""
        self.log_to(Trace(programs={self.world_rank: [("world", group)]} if replay else {}))

    def log_to(self, trace: Trace | None) -> None:
        """Log events to `trace` from now on; to nothing, if it is None."""
        self.trace = trace
        self.messages = trace.messages if trace is not None else None
        self.actions = trace.programs.get(self.world_rank) if trace is not None else None

    def log(self, *action: Any) -> int | None:
        """Add to the program, if it is logged; return the index of the action."""
        if self.actions is None:
            return None
        self.actions.append(action)
        return len(self.actions) - 1


class Communicator(ABC):
    """A group of `size` ranks that can exchange messages; this process is number `rank` of them.

    `world_rank` is this rank's number in the whole world.  Methods marked *collective* must be
    called by all ranks of the communicator, in the same order.  All others are local, or exchange
    messages with the peers that their arguments name.
    """

    rank: int
    size: int
    world_rank: int
    is_simulated: bool
    rank_state: RankState       # what all communicators of this rank share
    group: int = 0              # number of this communicator among those of this rank
    label: str = ""             # the collective that messages sent now belong to (`labelled`)
    axes: str = ""              # " over dp, cp" for ranks along axes of a mesh: in the labels
    num_works: int = 0          # non-blocking collectives started on it so far
    own_algorithms: Mapping[tuple[str, str], OwnAlgorithm] = {}   # by operation and name

    def __new__(cls, *args: Any, **options: Any) -> "Communicator":
        """Refuse to make one without a world of ranks."""
        if cls is Communicator:
            raise no_communicator_error()
        return super().__new__(cls)

    @abstractmethod
    def isend(self, array: Array, dest: int, tag: int = 0) -> Request:
        """Begin to send `array`; return at once."""

    @abstractmethod
    def irecv(self, out: Array, source: int, tag: int = 0) -> Request:
        """Begin to receive into `out`, which needs the dtype and size of the message."""

    def send(self, array: Array, dest: int, tag: int = 0) -> None:
        """Send `array` to `dest`.  May block until `dest` receives it."""
        self.isend(array, dest, tag).wait()

    def recv(self, out: Array, source: int, tag: int = 0) -> None:
        """Receive into `out` from `source`.  Blocks until the message is there."""
        self.irecv(out, source, tag).wait()

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """Send `array` to `dest` while receiving `out` from `source`: the safe way to exchange.

        Blocks until both are done.  If either half is refused, neither has begun.
        """
        receiving = self.irecv(out, source, tag)
        self.isend(array, dest, tag).wait()
        receiving.wait()

    @abstractmethod
    def wait_any(self, requests: Sequence[Request | None]) -> int:
        """Block until one of this rank's `requests` is done; return its index.

        Entries that are None are skipped.  If several are done, a simulated rank takes the earliest
        in virtual time, a real one the least index.  Works make no progress meanwhile.
        """

    @abstractmethod
    def split(self, color: int | None, key: int | None = None) -> "Communicator | None":
        """Collective.  A communicator of the ranks with this rank's `color`; None for color None.

        Ranks are numbered in the order of `key`, by default in their present order.
        """

    def choose(self, operation: str, num_bytes: int) -> str | None:
        """The algorithm that algorithm="auto" takes for `num_bytes`; the same on all ranks.

        None stands for the first one of the operation in `comm/algorithms.py`.
        """
        return None

    def labelled(self, label: str) -> Labelled:
        """Context in which messages carry `label`, unless an outer context gives them another."""
        return Labelled(self, label)

    def collective(self, operation: str, array: Array | None = None, uneven: int | None = None,
                   **options: Any) -> Labelled:
        """Context of a collective, whose messages carry the label `operation`.

        All ranks must give equal `options`, and an `array` of equal dtype and shape.  Only its axis
        `uneven`, if given, may differ in length.  The simulated cluster compares all these.
        """
        return Labelled(self, operation + self.axes)

    def check_peer(self, peer: int, role: str) -> None:
        """Raise ValueError unless `peer` is a rank of this communicator."""
        if not 0 <= peer < self.size:
            raise no_rank_error(self, peer, role)

    # Nodes, clock and trace.

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

    @property
    def trace(self) -> Trace | None:
        """The log of this rank's events on all its communicators; None while not tracing."""
        return self.rank_state.trace

    def start_trace(self, replay: bool = False) -> None:
        """Log this rank's messages and computations from now on; with `replay` its program too."""
        self.rank_state.start_trace(self.group, replay)

    def stop_trace(self) -> Trace | None:
        """Stop logging; return the log, None if there was none."""
        trace = self.rank_state.trace
        self.rank_state.log_to(None)
        return trace

    @staticmethod
    def from_mpi(mpi_comm: Any) -> "Communicator":
        """Collective.  A communicator of the same ranks as `mpi_comm`, any of mpi4py's.

        It is for programs that use mpi4py themselves: minipar's messages never meet theirs.
        """
        # Loaded here, since only this needs MPI; by name, since that module imports this one.
        return import_module(".mpi.world", __package__).from_mpi(mpi_comm)


for _name in MPI4PY_NAMES:
    for _written in {_name, _name.capitalize()} - {*vars(Communicator)}:
        setattr(Communicator, _written, OtherName(_written))


Choose = Callable[[str, int], str]              # (operation, bytes) -> name of an algorithm
Chooser = Callable[[Any], Choose]               # called once for each communicator


def some_of(requests: Sequence[Request | None]) -> list[tuple[int, Any]]:
    """(index, request) of those that are not None.  Raises ValueError if all are."""
    found = [(i, request) for i, request in enumerate(requests) if request is not None]
    if not found:
        raise ValueError("wait_any needs at least one request: all are None")
    return found


def source_line(frame: FrameType | None, unknown: str = "an unknown line") -> str:
    """The innermost line of the user's program, outside `minipar.comm`, as file:line."""
    # In a web page a rank's stack begins in Python; the library greenlet has no lines of it.
    while frame is not None and not frame.f_code.co_filename.endswith("browser/greenlet.py"):
        file = frame.f_code.co_filename
        if not file.startswith(HERE) and not file.endswith("contextlib.py"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return unknown
