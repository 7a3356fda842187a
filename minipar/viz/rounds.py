"""The rounds of a collective, filmed: what each rank holds after each, and which chunks moved.

    before      rank 0: a · ·     rank 1: · b ·     rank 2: · · c
    round 1     0 ─a▶ 1           1 ─b▶ 2           2 ─c▶ 0
    after it    rank 0: a · c     rank 1: a b ·     rank 2: · b c      …

Nothing here knows any algorithm.  The collective itself, unchanged, runs on simulated ranks whose
messages take one unit of time each, so that time counts rounds.  Its arrays have one element for
each chunk, and an element is the set of contributions that it is made of: `+` unites them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from ..comm import Cluster, Communicator
from ..comm.collectives import chunk_bounds, registry
from ..comm.collectives.broadcast import pipelined_chain
from ..comm.cost import Cost, best_num_segments, predict

FROM_ROOT, FROM_OWNER = ("broadcast", "scatter"), ("gather", "all_gather")
OPERATIONS = ("barrier", *FROM_ROOT, *FROM_OWNER, "reduce", "reduce_scatter", "all_reduce",
              "all_to_all", "scan")
Held = dict[int, frozenset[int]]        # chunk -> the ranks whose contributions are in it


class Parts(frozenset):
    """An element: the contributions (rank, chunk) that it is the sum of."""

    def __add__(self, other: "Parts") -> "Parts":
        if self & other:
            raise ValueError(f"the part of rank {min(self & other)[0]} was added twice")
        if len({chunk for _, chunk in self | other}) > 1:
            raise ValueError(f"different chunks were added: {sorted(self | other)}")
        return Parts(self | other)


class Move(NamedTuple):
    """One message: who sent what to whom, and how many bytes."""

    source: int
    dest: int
    num_bytes: int
    chunks: Held


@dataclass
class Rounds:
    """One run of `operation` by `algorithm`.

    `moves[k]` are the messages of the k-th round; `held[k][rank]` is what `rank` has come to know
    before it, and `held[-1]` at the end, of which it returned `results[rank]`.  `path[k]` are the
    bytes on the critical path of the first k rounds, `predicted` what the cost model says of all.
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
    predicted: Cost

    @property
    def whole(self) -> Held:
        """Everything that there is of each chunk, on whichever rank."""
        return unite(self.held[0])


def record_rounds(operation: str, algorithm: str, num_ranks: int, num_chunks: int | None = None,
                  chunk_bytes: int = 1000, root: int = 0, num_segments: int | None = None,
                  ranks_per_node: int | None = None) -> Rounds:
    """Run `operation` and film it.

    Its vector has `num_chunks` elements (as many as ranks), called chunks, of `chunk_bytes` each.
    `num_segments` is a pipelined chain's (by default the best), `ranks_per_node` is for
    hierarchical and torus.  Raises ValueError for an unknown operation or algorithm, or if it
    returns what its messages cannot have made.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"no film of {operation!r}: choose from {', '.join(OPERATIONS)}")
    p, n = num_ranks, num_ranks if num_chunks is None else num_chunks
    if operation == "barrier":
        n = 0
    if algorithm == "pipelined_chain":
        num_segments = num_segments or best_num_segments(p, n * chunk_bytes)
    pieces = [stop - start for start, stop in chunk_bounds(n, p)]
    counts = {"scatter": pieces[root:] + pieces[:root], "gather": pieces[root:] + pieces[:root],
              "all_to_all": registry.table_of_pieces(p, n)}
    cost = predict(operation, algorithm, p, n, chunk_bytes, counts.get(operation), num_segments,
                   ranks_per_node)
    given = [give(operation, r, p, n, root) for r in range(p)]

    def program(comm: Communicator) -> np.ndarray | None:
        vector = given[comm.rank].copy()
        if algorithm != "pipelined_chain":
            return registry.call(operation, algorithm, comm, vector, root=root)
        pipelined_chain(comm, vector, root, num_segments)   # whose number no operation passes on
        return vector
    nodes = {} if ranks_per_node is None else {"devices_per_node": ranks_per_node}
    by_round = Camera(p, latency=1, bandwidth=inf, **nodes)
    results = [decode(array) for array in by_round.run(program)[0]]
    by_bytes = Camera(p, latency=0, bandwidth=given[0].itemsize / chunk_bytes, **nodes)
    by_bytes.run(program)

    num_rounds = round(max((end for end, _ in by_round.seen), default=0))
    moves: list[list[Move]] = [[] for _ in range(num_rounds)]
    path = [0] * (num_rounds + 1)
    for (end, move), (end_in_bytes, _) in zip(pairs_in_order(by_round), pairs_in_order(by_bytes)):
        k = round(end)
        size = move.num_bytes // given[0].itemsize * chunk_bytes
        moves[k - 1].append(move._replace(num_bytes=size))
        path[k] = max(path[k], round(end_in_bytes))
    path = [max(path[:k + 1]) for k in range(num_rounds + 1)]
    held = [[decode(array) for array in given]]
    for moved in moves:
        held.append(follow(held[-1], moved, leaves=operation == "all_to_all"))
    check(results, held[-1])
    grid = (p, n) if operation == "all_to_all" else (1, n)
    return Rounds(operation, algorithm, p, grid, chunk_bytes, moves, held, results, path, cost)


def give(operation: str, rank: int, p: int, n: int, root: int) -> np.ndarray:
    """The vector that `rank` gives to the operation: n Parts, empty where it has nothing."""
    mine = range(n)
    if operation in FROM_ROOT and rank != root:
        mine = range(0)
    elif operation in FROM_OWNER:
        mine = range(*chunk_bounds(n, p)[rank])
    first = rank * n if operation == "all_to_all" else 0
    vector = np.empty(n, dtype=object)
    vector[:] = [Parts({(rank, first + i)} if i in mine else ()) for i in range(n)]
    return vector


class Camera(Cluster):
    """A cluster that remembers when each message arrived and what was in it."""

    def run(self, main: Callable[[Communicator], np.ndarray | None]) -> tuple[list, float]:
        """See Cluster."""
        self.seen: list[tuple[float, Move]] = []
        return super().run(main)

    def deliver(self, source, array, label, sent, dest, out, posted) -> float:
        """See Cluster."""
        end = super().deliver(source, array, label, sent, dest, out, posted)
        self.seen.append((end, Move(source.number, dest.number, array.nbytes, decode(array))))
        return end


def pairs_in_order(camera: Camera) -> list[tuple[float, Move]]:
    """What was seen, by sender and receiver, between whom messages keep their order."""
    return sorted(camera.seen, key=lambda seen: seen[1][:2])


def decode(array: np.ndarray | None) -> Held:
    """What is in an array of Parts; elements that nobody has filled are left out."""
    held: Held = {}
    for parts in () if array is None else array.flat:
        if parts:
            held[min(parts)[1]] = frozenset(rank for rank, _ in parts)
    return held


def unite(several: list[Held]) -> Held:
    """All of them together."""
    together: Held = {}
    for held in several:
        for chunk, ranks in held.items():
            together[chunk] = together.get(chunk, frozenset()) | ranks
    return together


def follow(held: list[Held], moved: list[Move], leaves: bool) -> list[Held]:
    """What ranks hold after the messages of a round: also what came; what `leaves` is gone."""
    after = [unite([mine, *(m.chunks for m in moved if m.dest == rank)])
             for rank, mine in enumerate(held)]
    for move in moved if leaves else ():
        for chunk in move.chunks:
            del after[move.source][chunk]
    return after


def check(results: list[Held], held: list[Held]) -> None:
    """Refuse a result that is not what the rank holds according to its messages."""
    for rank, (result, known) in enumerate(zip(results, held)):
        for chunk, ranks in result.items():
            if known.get(chunk) != ranks:
                raise ValueError(
                    f"rank {rank} returned chunk {chunk} made of {sorted(ranks)}; its messages "
                    f"brought {sorted(known.get(chunk, []))}: does it use all that arrives?")
