"""Every operation and algorithm, one rank doing otherwise: the report says which, and in what."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from minipar.comm import Cluster, CollectiveMismatch, collectives
from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.collectives.operations import REDUCTIONS, ROOTED
from tests.support.operation_table import ALL, NAMES

each = pytest.mark.parametrize(("operation", "algorithm"), ALL, ids=NAMES)
HAVE_DIM = {"gather", "all_gather", "scatter", "reduce_scatter"}


def at(marker: str) -> str:
    """file:line of the line of this file that ends with the comment `# <marker>`."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"  # {marker}")]
    return f"{__file__}:{number}"


def report(main, num_ranks: int = 2, **options) -> str:
    """The sentence that refuses a run."""
    with pytest.raises(CollectiveMismatch) as error:
        Cluster(num_ranks, **options).run(main)
    return str(error.value)


def prepare(operation: str, comm, shape=(30,), dtype=np.float32, **options):
    """A function that calls the collective."""
    arrays = [] if operation == "barrier" else [np.ones(shape, dtype)]
    return partial(getattr(collectives, operation), comm, *arrays, **options)


def mutations(operation: str, algorithm: str, p: int) -> dict[str, list[dict]]:
    """The ways in which one rank may differ, by argument: options of `prepare`."""
    others = [name for name in [*ALGORITHMS[operation], "auto"] if name != algorithm]
    found = {"algorithm": [{"algorithm": name} for name in others]}
    if operation == "barrier":
        return found
    found["dtype"] = [{"dtype": np.int32}, {"dtype": ">f4"}, {"dtype": np.float64}]
    found["shape"] = [{"shape": (2 * p * p, 2)}, {"shape": (4 * p * p,)}, {"shape": (p, p)}]
    if operation in REDUCTIONS:
        found["op"] = [{"op": "max"}, {"op": "prod"}, {"op": np.minimum}]
    if operation in ROOTED:
        found["root"] = [{"root": 1}]
    if operation in HAVE_DIM:
        found["dim"] = [{"dim": 1}]
    if operation == "all_to_all":
        found["split_dim"], found["concat_dim"] = [{"split_dim": 1}], [{"concat_dim": 1}]
    return found


@each
@pytest.mark.one_in(4)
def test_one_rank_with_another_argument(operation, algorithm):
    for p in (2, 3, 5):
        right = {"algorithm": algorithm, **({} if operation == "barrier" else
                                            {"shape": (2 * p, 2 * p)})}
        for name, changes in mutations(operation, algorithm, p).items():
            for change in changes:
                for odd in range(p):
                    def main(comm, odd=odd, change=change, right=right):
                        if comm.rank == odd:
                            prepare(operation, comm, **right | change)()  # another argument
                        else:
                            prepare(operation, comm, **right)()  # like the others
                    said = report(main, p)
                    assert f"mismatch: ranks differ in {name}\n" in said, said
                    here = [line for line in said.split("\n") if line.startswith(f"  rank {odd} ")]
                    assert here[0].endswith(f" at {at('another argument')}")
                    assert f" at {at('like the others')}" in said


@each
@pytest.mark.one_in(4)
def test_one_rank_with_another_order_or_operation(operation, algorithm):
    for other in ALGORITHMS:
        if other == operation:
            continue
        for p, odd in ((2, 1), (3, 0), (5, 2)):
            def in_another_order(comm, odd=odd, other=other):
                calls = [prepare(operation, comm, algorithm=algorithm), prepare(other, comm)]
                for call in calls[::-1 if comm.rank == odd else 1]:
                    call()

            def with_another(comm, odd=odd, other=other):
                prepare(other if comm.rank == odd else operation, comm)()

            for main in (in_another_order, with_another):
                for eager in (0, 1 << 20):
                    said = report(main, p, eager=eager)
                    assert "mismatch: ranks differ in operation\n" in said
                    assert f"rank {odd} called {other}(" in said and f" called {operation}(" in said


def num_rows(operation: str, rank: int, counts: list) -> int:
    """The length that a rank must give."""
    return {"gather": lambda: counts[rank], "all_gather": lambda: counts[rank],
            "all_to_all": lambda: sum(counts[rank])}.get(operation, lambda: sum(counts))()


@pytest.mark.parametrize(("operation", "counts", "others"), [
    ("all_gather", [2, 1, 1], [1, 2, 1]), ("gather", [2, 1, 1], [1, 2, 1]),
    ("scatter", [2, 1, 1], [1, 2, 1]), ("reduce_scatter", [2, 1, 1], [1, 2, 1]),
    ("all_to_all", [[1, 1, 0], [0, 1, 1], [2, 0, 1]], [[1, 0, 1], [0, 1, 1], [2, 0, 1]])])
def test_other_counts_of_as_many_rows(operation, counts, others):
    def main(comm, all_alike=False):
        mine = others if comm.rank == 2 and not all_alike else counts
        prepare(operation, comm, (num_rows(operation, comm.rank, mine), 3), counts=mine)()
    said = report(main, 3)
    assert "mismatch: ranks differ in counts\n" in said
    assert f"rank 2 called {operation}(" in said and f"counts={others}" in said
    Cluster(3).run(partial(main, all_alike=True))       # lengths may differ where counts say so
