"""Every operation × algorithm, called in one way: TABLE[operation, algorithm](comm, n, dtype, op).

Rank r's input is a vector of n small integers, a function of r alone.  So any rank can compute
every result with NumPy: `expected(operation, p, rank, n, dtype, op)`.
"""

from functools import lru_cache, partial
from itertools import accumulate

import numpy as np

from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.arguments import OPERATORS
from minipar.comm.collectives import operations


def given(rank: int, n: int, dtype=np.int64) -> np.ndarray:
    """Rank's vector of n."""
    values = (np.arange(n) * 5 + rank * 7 + (rank + 1) * np.arange(n) // 3) % 3 + 1
    return (values > 2 if np.dtype(dtype) == bool else values).astype(dtype)


def pieces(vector: np.ndarray, p: int) -> list[np.ndarray]:
    """Cut as every collective cuts: np.array_split, whose own loop is slow."""
    stops = [(len(vector) // p) * (i + 1) + min(i + 1, len(vector) % p) for i in range(p)]
    return [vector[start:stop] for start, stop in zip([0, *stops], stops)]


def call(operation: str, algorithm: str, comm, n: int, dtype=np.int64, op: str = "sum",
         root: int = 0, inputs=None):
    """Run it; return this rank's result.  inputs(rank, n), if given, are other vectors."""
    mine = given(comm.rank, n, dtype) if inputs is None else inputs(comm.rank, n)
    before = mine.copy()
    result = operations.call(operation, algorithm, comm, mine, op, root)
    assert (mine == before).all(), "the input was changed"
    return result


@lru_cache(maxsize=4)
def all_given(p: int, n: int, dtype, op: str) -> tuple[list, list]:
    """The vectors of p ranks, and their reductions over ranks 0, 0 … 1, 0 … 2 and so on."""
    inputs = [given(r, n, dtype) for r in range(p)]
    return inputs, list(accumulate(inputs, OPERATORS[op]))


def expected(operation: str, p: int, rank: int, n: int, dtype=np.int64, op: str = "sum",
             root: int = 0, inputs=None):
    """The result of `call` on `rank` by NumPy; `inputs` are other vectors, of all ranks."""
    inputs, reduced = all_given(p, n, dtype, op) if inputs is None else (
        inputs, list(accumulate(inputs, partial(OPERATORS[op], dtype=dtype))))

    def neutral() -> np.ndarray:
        info = np.finfo if np.dtype(dtype).kind == "f" else np.iinfo
        kind = {"sum": 0, "prod": 1}
        return np.full(n, kind[op] if op in kind else info(dtype).min, dtype)

    def pieces_of(rank_of) -> np.ndarray:
        return np.concatenate([pieces(vector, p)[rank_of(r)] for r, vector in enumerate(inputs)])

    return {
        "barrier": lambda: None,
        "broadcast": lambda: inputs[root],
        "scatter": lambda: pieces(inputs[root], p)[rank],
        "gather": lambda: pieces_of(lambda r: r) if rank == root else None,
        "all_gather": lambda: pieces_of(lambda r: r),
        "reduce": lambda: reduced[-1] if rank == root else None,
        "all_reduce": lambda: reduced[-1],
        "reduce_scatter": lambda: pieces(reduced[-1], p)[rank],
        "all_to_all": lambda: pieces_of(lambda r: rank),
        "scan": lambda: reduced[rank],
        "exscan": lambda: reduced[rank - 1] if rank else neutral(),
    }[operation]()


def check(result, operation: str, p: int, rank: int, *args, **options) -> None:
    """Assert that `result` is what is expected, to the bit."""
    right = expected(operation, p, rank, *args, **options)
    if right is None:
        assert result is None
        return
    assert result.dtype == right.dtype and result.shape == right.shape
    assert np.array_equal(result, right), (operation, p, rank, result, right)


ALL = [(operation, algorithm) for operation, algorithms in ALGORITHMS.items()
       for algorithm in [*algorithms, "auto"]]
NAMES = [f"{operation}-{algorithm}" for operation, algorithm in ALL]
