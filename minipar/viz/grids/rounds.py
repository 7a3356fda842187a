"""The rounds of a collective, recorded: the chunks that move in each, and who holds them then.

    before      rank 0: a · ·     rank 1: · b ·     rank 2: · · c
    round 1     0 ─a▶ 1           1 ─b▶ 2           2 ─c▶ 0
    after it    rank 0: a · c     rank 1: a b ·     rank 2: · b c      …

No algorithm is written down here.  The collective itself runs on simulated ranks whose messages
take one unit of time each, so that time counts rounds.  Its arrays have one element for each chunk,
and an element is the set of contributions that were summed: `+` is the union of two sets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import NamedTuple

import numpy as np

from ...comm import Cluster, Communicator
from ...comm.algorithms import ALGORITHMS
from ...comm.collectives import chunk_bounds, operations
from ...comm.collectives.broadcast import pipelined_chain
from ...comm.cost import Cost, best_num_segments, predict

FROM_ROOT, FROM_OWNER = ("broadcast", "scatter"), ("gather", "all_gather")
OPERATIONS = ("barrier", *FROM_ROOT, *FROM_OWNER, "reduce", "reduce_scatter", "all_reduce",
              "all_to_all", "scan")
Held = dict[int, frozenset[int]]        # chunk -> the ranks whose contributions are in it


class Contributions(frozenset):
    """An element of an array: the contributions (rank, chunk) that it is the sum of."""

    def __add__(self, other: "Contributions") -> "Contributions":
        if self & other:
            raise ValueError(f"the part of rank {min(self & other)[0]} was added twice")
        if len({chunk for _, chunk in self | other}) > 1:
            raise ValueError(f"different chunks were added: {sorted(self | other)}")
        return Contributions(self | other)


class Move(NamedTuple):
    """One message: its ranks, its bytes, and its chunks."""

    source: int
    dest: int
    num_bytes: int
    chunks: Held


@dataclass
class Rounds:
    """One run of `operation` by `algorithm`.

    moves[k]           the messages of the k-th round
    held[k][rank]      the chunks that `rank` has before that round; held[-1]: at the end
    results[rank]      the part of them that the operation returned
    path[k]            bytes on the critical path of the first k rounds
    predicted          the prediction of the cost model, if the algorithm has one

    Chunks are numbered along the rows of a `grid` (rows, columns) and have `chunk_bytes` bytes.
    """

    operation: str
    algorithm: str
    num_ranks: int
    grid: tuple[int, int]
    chunk_bytes: int
    moves: list[list[Move]]
    held: list[list[Held]]
    results: list[Held]
    path: list[int]
    predicted: Cost | None

    @property
    def whole(self) -> Held:
        """All contributions to each chunk, over all ranks."""
        return union(self.held[0])


def record_rounds(operation: str, algorithm: str, num_ranks: int, num_chunks: int | None = None,
                  chunk_bytes: int = 1000, root: int = 0, num_segments: int | None = None,
                  ranks_per_node: int | None = None) -> Rounds:
    """Run `operation` and record its rounds.

    Its vector has `num_chunks` chunks (default: one for each rank) of `chunk_bytes` bytes.
    `num_segments` is for pipelined_chain (default: the best number), `ranks_per_node` for
    hierarchical and torus.  Raises ValueError for an unknown operation or algorithm, or if a rank
    returns a chunk that its messages did not bring.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"the rounds of {operation!r} cannot be recorded: choose from "
                         f"{', '.join(OPERATIONS)}")
    p, n = num_ranks, num_ranks if num_chunks is None else num_chunks
    if operation == "barrier":
        n = 0
    if algorithm == "pipelined_chain":
        num_segments = num_segments or best_num_segments(p, n * chunk_bytes)
    pieces = [stop - start for start, stop in chunk_bounds(n, p)]
    counts = {"scatter": pieces[root:] + pieces[:root], "gather": pieces[root:] + pieces[:root],
              "all_to_all": operations.table_of_pieces(p, n)}.get(operation)
    entry = ALGORITHMS[operation].get(algorithm)
    cost = None if entry and not entry.rounds else predict(
        operation, algorithm, p, n, chunk_bytes, counts, num_segments, ranks_per_node)
    given = [initial_vector(operation, r, p, n, root) for r in range(p)]

    def program(comm: Communicator) -> np.ndarray | None:
        vector = given[comm.rank].copy()
        if algorithm != "pipelined_chain":
            return operations.call(operation, algorithm, comm, vector, root=root)
        pipelined_chain(comm, vector, root, num_segments)   # `call` passes no number of segments
        return vector
    nodes = {} if ranks_per_node is None else {"devices_per_node": ranks_per_node}
    by_round = RecordingCluster(p, latency=1, bandwidth=inf, **nodes)
    results = [decode(array) for array in by_round.run(program)[0]]
    scale = chunk_bytes / given[0].itemsize             # bytes of a chunk over bytes of its symbol
    by_bytes = RecordingCluster(p, latency=0, bandwidth=1 / scale, **nodes)
    by_bytes.run(program)
    moves, path = sort_into_rounds(by_round, by_bytes, scale)
    held = [[decode(array) for array in given]]
    for moved in moves:
        held.append(after_round(held[-1], moved, leaves=operation == "all_to_all"))
    check_results(results, held[-1])
    grid = (p, n) if operation == "all_to_all" else (1, n)
    return Rounds(operation, algorithm, p, grid, chunk_bytes, moves, held, results, path, cost)


def sort_into_rounds(by_round: "RecordingCluster", by_bytes: "RecordingCluster", scale: float
                     ) -> tuple[list[list[Move]], list[int]]:
    """The messages of each round, and the bytes on the critical path up to the end of each.

    In `by_round` a message takes 1 second.  In `by_bytes` it takes 1 second for each byte of its
    chunks: `scale` times the bytes of the symbols that it carries.
    """
    num_rounds = round(max((end for end, _ in by_round.seen), default=0))
    moves: list[list[Move]] = [[] for _ in range(num_rounds)]
    path = [0] * (num_rounds + 1)
    # sorted by sender and receiver: messages between two ranks keep their order
    pairs = (sorted(run.seen, key=lambda seen: seen[1][:2]) for run in (by_round, by_bytes))
    for (end, move), (end_in_bytes, _) in zip(*pairs):
        k = round(end)
        moves[k - 1].append(move._replace(num_bytes=round(move.num_bytes * scale)))
        path[k] = max(path[k], round(end_in_bytes))
    return moves, list(accumulate(path, max))


class Symbols(np.ndarray):
    """An array of Contributions, which simulated ranks exchange in place of numbers."""


def initial_vector(operation: str, rank: int, p: int, n: int, root: int) -> np.ndarray:
    """The vector that `rank` starts with: n Contributions, empty where it has none."""
    mine = range(n)
    if operation in FROM_ROOT and rank != root:
        mine = range(0)
    elif operation in FROM_OWNER:
        mine = range(*chunk_bounds(n, p)[rank])
    first = rank * n if operation == "all_to_all" else 0
    vector = np.empty(n, dtype=object).view(Symbols)
    vector[:] = [Contributions({(rank, first + i)} if i in mine else ()) for i in range(n)]
    return vector


class RecordingCluster(Cluster):
    """A cluster that records each message: the time of its arrival and its chunks."""

    def run(self, main: Callable[[Communicator], np.ndarray | None]) -> tuple[list, float]:
        """Run main(comm) on every rank, with an empty record."""
        self.seen: list[tuple[float, Move]] = []
        return super().run(main)

    def deliver(self, source, array, label, sent, dest, out, posted) -> float:
        """Deliver a message and record it; return the time of its arrival."""
        end = super().deliver(source, array, label, sent, dest, out, posted)
        self.seen.append((end, Move(source.world_rank, dest.world_rank, array.nbytes,
                                    decode(array))))
        return end


def decode(array: np.ndarray | None) -> Held:
    """The chunks in an array of Contributions, without its empty elements."""
    held: Held = {}
    for parts in () if array is None else array.flat:
        if parts:
            held[min(parts)[1]] = frozenset(rank for rank, _ in parts)
    return held


def union(several: list[Held]) -> Held:
    """The contributions of several ranks together, chunk by chunk."""
    together: Held = {}
    for held in several:
        for chunk, ranks in held.items():
            together[chunk] = together.get(chunk, frozenset()) | ranks
    return together


def after_round(held: list[Held], moved: list[Move], leaves: bool) -> list[Held]:
    """The chunks of each rank after a round; with `leaves`, a sent chunk leaves its sender."""
    after = [union([mine, *(m.chunks for m in moved if m.dest == rank)])
             for rank, mine in enumerate(held)]
    for move in moved if leaves else ():
        for chunk in move.chunks:
            del after[move.source][chunk]
    return after


def check_results(results: list[Held], held: list[Held]) -> None:
    """Raise ValueError if a rank returned other chunks than its messages brought."""
    for rank, (result, known) in enumerate(zip(results, held)):
        for chunk, ranks in result.items():
            if known.get(chunk) != ranks:
                raise ValueError(
                    f"rank {rank} returned chunk {chunk} made of {sorted(ranks)}; its messages "
                    f"brought {sorted(known.get(chunk, []))}: does it use all that arrives?")
