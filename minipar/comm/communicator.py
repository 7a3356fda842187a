"""The Communicator: the only door through which bytes reach another rank.

    comm.send(array, dest=1)          comm.recv(out, source=0)

A program is a function main(comm), and runs unchanged on real MPI processes (`mpi.py`) and on a
simulated cluster inside one process (`simulated.py`).  Messages between two ranks with the same tag
arrive in the order they were sent.  A send may block until it is received, at any size
(*rendezvous*): a program that relies on buffering hangs one day, and here it is told so at once.
"""

from typing import Any, Protocol

from ..backend import Array
from .trace import Trace

NUM_TAGS = 1 << 15      # the least number of tags that every MPI library must offer


class Request(Protocol):
    """A send or receive under way.  Its array must not be touched before `wait` returns."""

    def wait(self) -> None:
        """Block until it is done."""

    def test(self) -> bool:
        """Whether it is done, without blocking."""

    def peek(self) -> bool:
        """The same, for who goes on in any case: no virtual time passes, so never loop on it."""


class Labelled:
    """See Communicator.labelled.  A class of its own: a generator takes as long as a message."""

    __slots__ = ("comm", "label", "outer")

    def __init__(self, comm: "Communicator", label: str):
        self.comm, self.label = comm, label

    def __enter__(self) -> None:
        self.outer = self.comm.label
        self.comm.label = self.outer or self.label

    def __exit__(self, *error: object) -> None:
        self.comm.label = self.outer


class Communicator:
    """`size` ranks that can talk to each other, of which this is number `rank`.

    `world_rank` is this rank's number in the whole world.
    """

    rank: int
    size: int
    world_rank: int
    group: int = 0          # its number among the communicators of this rank
    label: str = ""         # what messages sent now are part of; set with `labelled`
    num_works: int = 0      # how many non-blocking collectives were started on it

    def isend(self, array: Array, dest: int, tag: int = 0) -> Request:
        """Begin to send `array`."""
        raise TypeError("a Communicator comes from launch(main) or Cluster(n).run(main)")

    def irecv(self, out: Array, source: int, tag: int = 0) -> Request:
        """Begin to receive into `out`, which must have the dtype and size of what was sent."""
        raise TypeError("a Communicator comes from launch(main) or Cluster(n).run(main)")

    def send(self, array: Array, dest: int, tag: int = 0) -> None:
        """Send `array` to `dest`; may block until it is received."""
        self.isend(array, dest, tag).wait()

    def recv(self, out: Array, source: int, tag: int = 0) -> None:
        """Receive into `out` from `source`; blocks until it is there."""
        self.irecv(out, source, tag).wait()

    def sendrecv(self, array: Array, dest: int, out: Array, source: int, tag: int = 0) -> None:
        """Send `array` to `dest` while receiving `out` from `source`: the safe way to exchange."""
        receiving = self.irecv(out, source, tag)
        self.isend(array, dest, tag).wait()
        receiving.wait()

    def split(self, color: int | None, key: int | None = None) -> "Communicator | None":
        """Called by all: those of one colour become a communicator, ordered by key (by rank).

        None for those whose colour is None.
        """
        raise TypeError("a Communicator comes from launch(main) or Cluster(n).run(main)")

    def node_of(self, rank: int) -> int:
        """The number of the node (0, 1, …: a box whose ranks share memory) that has `rank`."""
        raise TypeError("a Communicator comes from launch(main) or Cluster(n).run(main)")

    def world_rank_of(self, rank: int) -> int:
        """The number that `rank` has in the whole world, and so in traces."""
        raise TypeError("a Communicator comes from launch(main) or Cluster(n).run(main)")

    @property
    def node(self) -> int:
        """The number of this rank's node."""
        return self.node_of(self.rank)

    def now(self) -> float:
        """Seconds on this rank's clock: virtual time on a simulated cluster, else the wall's."""
        raise TypeError("a Communicator comes from launch(main) or Cluster(n).run(main)")

    def work(self, name: str, flops: int, num_bytes: int, seconds: float) -> None:
        """Told of computation that just took `seconds` of real time: traced, and on a simulated
        cluster it is what makes virtual time pass."""

    @property
    def trace(self) -> Trace | None:
        """The log of this rank's events, on whichever communicator; None while nobody asks."""
        return self.me.trace

    def start_trace(self, replay: bool = False) -> None:
        """Log this rank's messages and computations from now on; what `replay` needs, if asked."""
        world = [("world", self.group)]
        self.me.log_to(Trace(programs={self.me.number: world} if replay else {}))

    def stop_trace(self) -> Trace:
        """Stop; return what was logged."""
        trace = self.me.trace
        self.me.log_to(None)
        return trace

    def labelled(self, label: str) -> "Labelled":
        """Context in which messages are part of `label`, unless they are part of something."""
        return Labelled(self, label)

    def collective(self, operation: str, array: Array | None = None, uneven: int | None = None,
                   **options: Any) -> "Labelled":
        """Context of a collective, whose messages are part of `operation`.

        All ranks must give equal `options`, and an `array` of equal dtype and shape; only its axis
        `uneven`, if any, may differ in length.  The simulated cluster compares them.
        """
        return Labelled(self, operation)

    def check_peer(self, peer: int, role: str) -> None:
        """Refuse a rank that is none of this communicator's."""
        if not 0 <= peer < self.size:
            raise ValueError(f"{role}={peer} is no rank of this communicator: it has "
                             f"0 … {self.size - 1}")

    def check_tag(self, tag: int) -> None:
        """Refuse a tag that not every MPI library has."""
        if not 0 <= tag < NUM_TAGS:
            raise ValueError(f"tag={tag}: a tag is a number from 0 to {NUM_TAGS - 1}")
