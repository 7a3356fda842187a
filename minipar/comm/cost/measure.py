"""Measure a communicator: its links by ping-pong, its collectives by running them.

    rank 0 ─n bytes▶ rank 1 ─n bytes▶ rank 0        half the time, for each n; then a line is fitted

Measurements that are compared run in turn, round after round, so that other programs disturb all of
them alike.  The result is the median over the rounds; a collective takes as long as its slowest
rank.  On a simulated cluster the times of messages are virtual, and exact.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..collectives.all_reduce import all_reduce
from ..collectives.barrier import barrier
from ..collectives.operations import OPERATIONS, OVER_NODES, arguments_of
from ..communicator import Communicator
from .calibration import CalibrationTable, Rows
from .choose import algorithms_of, crossings
from .fit import Fit, fit

LINK_SIZES = tuple(8 * 4**k for k in range(10))         # bytes: 8 … 2 Mi
SIZES = tuple(64 * 4**k for k in range(9))              # bytes: 64 … 4 Mi
MARGIN = 1.1        # an algorithm replaces another one if it is faster by this factor


def ping_pong(comm: Communicator, peer: int, sizes: Sequence[int],
              num_rounds: int = 15) -> list[float]:
    """Collective.  Median seconds of a message between rank 0 and `peer`, for each size.

    The other ranks sleep meanwhile, so that they do not take a core.
    """
    times = np.zeros((num_rounds, len(sizes)))
    if comm.rank in (0, peer):
        other = peer - comm.rank                # 0 + peer - rank
        arrays = [np.zeros(size, np.uint8) for size in sizes]
        for i in range(-1, num_rounds):         # round -1 warms up
            for j, array in enumerate(arrays):
                start = comm.now()
                if comm.rank == 0:
                    comm.send(array, other)
                    comm.recv(array, other)
                else:
                    comm.recv(array, other)
                    comm.send(array, other)
                times[i, j] = (comm.now() - start) / 2      # … and is overwritten by the last
    return list(map(float, _from_rank_0(comm, np.median(times, axis=0))))


def _from_rank_0(comm: Communicator, array: np.ndarray) -> np.ndarray:
    """Rank 0's array, on all ranks; a rank that waits for it sleeps."""
    if comm.rank:
        request = comm.irecv(array, 0)
        while not request.test():
            time.sleep(0.002)
    else:
        for rank in range(1, comm.size):
            comm.send(array, rank)
    return array


def measure_links(comm: Communicator, sizes: Sequence[int] = LINK_SIZES,
                  num_rounds: int = 15) -> tuple[Fit | None, Fit | None]:
    """Collective.  The link within a node and the link between nodes, fitted to ping-pongs.

    Rank 0 plays with the next rank of its node, and with the first rank of another node.  A link is
    None if there is no such rank.
    """
    peers: dict[bool, int] = {}
    for rank in range(1, comm.size):
        peers.setdefault(comm.node_of(rank) == comm.node_of(0), rank)
    within, between = (
        fit(sizes, ping_pong(comm, peers[near], sizes, num_rounds)) if near in peers else None
        for near in (True, False))
    return within, between


def measure_combining(comm: Communicator, num_bytes: int = 1 << 20,
                      num_rounds: int = 15) -> float:
    """Collective.  Bytes per second that the slowest rank adds up, in wall time."""
    total, addend, times = np.zeros(num_bytes // 4, np.float32), np.ones(num_bytes // 4,
                                                                         np.float32), []
    for _ in range(num_rounds):
        start = time.perf_counter()
        np.add(total, addend, out=total)
        times.append(time.perf_counter() - start)
    slowest = all_reduce(comm, np.array([np.median(times)], np.float64), op="max",
                         algorithm="ring")
    return num_bytes / float(slowest[0])


def comparable(comm: Communicator, operation: str) -> list[str]:
    """The algorithms that "auto" may take; on one node without those for several nodes."""
    single = operation == "all_reduce" and comm.node_of(0) == comm.node_of(comm.size - 1)
    return [name for name in algorithms_of(comm, operation) if not (single and name in OVER_NODES)]


def prepare(comm: Communicator, operation: str, num_bytes: int) -> Callable[[str], Any]:
    """A function run(algorithm): the operation on a vector of about `num_bytes` of float32."""
    arrays, options = arguments_of(operation, comm, np.zeros(num_bytes // 4, np.float32))
    if operation in ("all_reduce", "broadcast"):
        options["out"] = arrays[0]
    return lambda algorithm: OPERATIONS[operation](comm, *arrays, algorithm=algorithm, **options)


def measure_algorithms(comm: Communicator, operation: str, sizes: Sequence[int] = SIZES,
                       num_rounds: int = 15,
                       names: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Collective.  Seconds of each algorithm of `names` (by default all `comparable`) by size."""
    names = names or comparable(comm, operation)
    found: dict[str, list[float]] = {}
    for size in sizes:
        run = prepare(comm, operation, size)
        times = np.zeros((num_rounds, len(names)))
        for i in range(-1, num_rounds):
            for j, name in enumerate(names):
                barrier(comm, algorithm="dissemination")
                start = comm.now()
                run(name)
                times[i, j] = comm.now() - start
        slowest = all_reduce(comm, times, op="max", algorithm="ring")
        for name, seconds in zip(names, np.median(slowest, axis=0)):
            found.setdefault(name, []).append(float(seconds))
    return found


def between_sizes(sizes: Sequence[int], times: Sequence[float], num_bytes: float) -> float:
    """Seconds at a size between the measured ones: a straight line on logarithmic axes."""
    return float(np.exp(np.interp(np.log(num_bytes), np.log(sizes), np.log(times))))


def rows_of(sizes: Sequence[int], times: dict[str, list[float]]) -> Rows:
    """The rows of a table: (first number of bytes, all algorithms from the fastest to the slowest).

    A row lasts until another algorithm is faster than its first one by MARGIN at a measured size.
    The next row then begins where the lines between the measured sizes cross.
    """
    rows: list[tuple[int, tuple[str, ...]]] = []
    since = 0                               # index of the size where the last row was made
    for i in range(len(sizes)):
        order = sorted(times, key=lambda name: times[name][i])
        if not rows:
            rows.append((0, tuple(order)))
        now, new = rows[-1][1][0], order[0]
        if times[now][i] <= MARGIN * times[new][i]:
            continue

        def best(num_bytes: int, now: str = now, new: str = new) -> str:
            return min((now, new), key=lambda name: between_sizes(sizes, times[name], num_bytes))
        crossed, _, _ = crossings(best, sizes[since:i + 1])[-1]
        rows.append((crossed, tuple(order)))
        since = i
    return tuple(rows)


def table_of(comm: Communicator,
             measured: dict[str, tuple[Sequence[int], dict]]) -> CalibrationTable:
    """The table of this communicator; `measured` is operation → (sizes, times by algorithm)."""
    num_nodes = len({comm.node_of(rank) for rank in range(comm.size)})
    rows = {operation: rows_of(sizes, times) for operation, (sizes, times) in measured.items()}
    return CalibrationTable(comm.size, num_nodes, rows)
