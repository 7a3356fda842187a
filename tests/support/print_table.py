"""Operation × algorithm × ranks: equal to NumPy, and counted = predicted.  A program.

    python -m tests.support.print_table                     1 … 33 simulated ranks
    mpirun -n 4 python -m tests.support.print_table         4 real ranks

    NumPy, integers     equal, exactly
    NumPy, float32      within p·eps of the sum of magnitudes; movers of data exactly
    cost                simulated: (rounds, bytes on the critical path, messages, reduced) as
                        predicted; real: messages, of all ranks together

Exits with 1 if a cell is wrong.  tests/comm/cost/test_table.py runs it.
"""

import sys
from collections.abc import Iterable
from contextvars import ContextVar
from typing import NamedTuple

import numpy as np

from minipar.comm import Cluster, Communicator, arguments
from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.collectives import all_reduce
from minipar.comm.cost import Cost, predict
from minipar.environment import launched
from minipar.launcher import launch
from tests.support.operation_table import ALL, call, check, expected

COMM: ContextVar = ContextVar("COMM")           # the communicator of the rank that runs
REDUCING = ("reduce", "all_reduce", "reduce_scatter", "scan", "exscan")


class Cell(NamedTuple):
    """Whether one operation is right by one algorithm; None where no cost is predicted."""

    integers: bool
    floats: bool
    cost: bool | None

    @property
    def is_right(self) -> bool:
        """True if nothing is wrong."""
        return self.integers and self.floats and self.cost is not False


def lengths(operation: str, p: int) -> list[int]:
    """Lengths to try: 0, one that p divides, and one that most p do not.

    An all-to-all without a table only has a predicted cost where p divides n.
    """
    return [0, 2 * p] + ([] if operation == "all_to_all" else [37])


def is_equal(results: Iterable, ranks: Iterable[int], operation: str, p: int, n: int) -> bool:
    """True if the results on integers equal NumPy's on these ranks."""
    try:
        for rank, result in zip(ranks, results):
            check(result, operation, p, rank, n)
    except AssertionError:
        return False
    return True


def given_floats(rank: int, n: int) -> np.ndarray:
    return np.random.default_rng([rank, n]).standard_normal(n).astype(np.float32)


def is_close(result: np.ndarray | None, operation: str, p: int, rank: int, n: int) -> bool:
    """True if a result on `given_floats` is right: p·eps of Σ|x| where there are sums."""
    inputs = [given_floats(r, n) for r in range(p)]
    right = expected(operation, p, rank, n, np.float64, inputs=inputs)
    if right is None or result is None:
        return right is None and result is None
    if operation not in REDUCING:
        return np.array_equal(result, right)
    sizes = expected(operation, p, rank, n, np.float64, inputs=[np.abs(x) for x in inputs])
    return bool(np.all(np.abs(result - right) <= p * np.finfo(np.float32).eps * sizes))


def timed_sum(a, b, out):
    """A sum that takes a simulated rank the time of its bytes."""
    COMM.get().report_compute("combine", 0, out.nbytes, 0.0)
    return np.add(a, b, out=out)


def count(p: int, body) -> Cost:
    """The cost of body(comm) on p ranks, from three runs that each make one thing take time."""
    def run(**speeds) -> tuple:
        cluster = Cluster(p, trace=True, **{"latency": 0, "bandwidth": np.inf,
                                            "memory_bandwidth": np.inf, **speeds})

        def main(comm):
            COMM.set(comm)
            body(comm)
        return cluster.run(main)[1], cluster.trace.num_sent()
    plain, arguments.OPERATORS["sum"] = arguments.OPERATORS["sum"], timed_sum
    try:
        rounds, messages = run(latency=1)
        return Cost(rounds, run(bandwidth=1)[0], messages, run(memory_bandwidth=1)[0])
    finally:
        arguments.OPERATORS["sum"] = plain


def simulated_cell(operation: str, algorithm: str, p: int) -> Cell:
    """One cell on p simulated ranks."""
    cell = Cell(True, True, None)
    for n in lengths(operation, p):
        def body(comm, n=n):
            return (call(operation, algorithm, comm, n),
                    call(operation, algorithm, comm, n, inputs=given_floats))
        results = Cluster(p).run(body)[0]
        cost = cell.cost
        if algorithm != "auto" and ALGORITHMS[operation][algorithm].rounds:
            counted = count(p, lambda comm, n=n: call(operation, algorithm, comm, n))
            cost = cost is not False and counted == predict(operation, algorithm, p, n)
        cell = Cell(cell.integers and is_equal([r[0] for r in results], range(p), operation, p, n),
                    cell.floats and all(is_close(result[1], operation, p, rank, n)
                                        for rank, result in enumerate(results)), cost)
    return cell


def real_cell(comm: Communicator, operation: str, algorithm: str) -> Cell:
    """One cell on the real ranks of `comm`, the same on all of them."""
    wrong = np.zeros(3, int)
    p, r = comm.size, comm.rank
    is_predicted = algorithm not in ("auto", "mpi") and ALGORITHMS[operation][algorithm].rounds
    for n in lengths(operation, p):
        comm.start_trace()
        result = call(operation, algorithm, comm, n)
        messages = all_reduce(comm, np.array([comm.stop_trace().num_sent()]), algorithm="ring")
        wrong[0] += not is_equal([result], [r], operation, p, n)
        wrong[1] += not is_close(call(operation, algorithm, comm, n, inputs=given_floats),
                                 operation, p, r, n)
        if is_predicted:
            wrong[2] += int(messages[0]) != predict(operation, algorithm, p, n).messages
    wrong = all_reduce(comm, wrong, algorithm="ring")
    return Cell(not wrong[0], not wrong[1], not wrong[2] if is_predicted else None)


def show(cells: dict[tuple[str, str], list[Cell]], ranks: str) -> bool:
    """Print the table; return whether all of it is right."""
    print(f"{'operation':15} {'algorithm':20} {'ranks':>7}  integers  floats  counted = predicted")
    for (operation, algorithm), row in cells.items():
        marks = ["–" if values[0] is None else f"{sum(values)}/{len(values)}"
                 for values in zip(*row)]
        print(f"{operation:15} {algorithm:20} {ranks:>7}  {marks[0]:>8}  {marks[1]:>6}  "
              f"{marks[2]:>9}" + ("" if all(cell.is_right for cell in row) else "   WRONG"))
    num_cells = sum(map(len, cells.values()))
    num_right = sum(cell.is_right for row in cells.values() for cell in row)
    print(f"{len(cells)} algorithms, {num_cells} cells, {num_right} right")
    return num_right == num_cells


def main(comm: Communicator) -> None:
    """Run each cell on all real ranks together; rank 0 prints the table."""
    cells = {pair: [real_cell(comm, *pair)]
             for pair in [*ALL, *((operation, "mpi") for operation in sorted({o for o, _ in ALL}))]}
    if comm.rank == 0 and not show(cells, str(comm.size)):
        sys.exit(1)


if __name__ == "__main__":
    if launched():
        launch(main)
    else:
        sizes = range(1, 34)
        sys.exit(not show({pair: [simulated_cell(*pair, p) for p in sizes] for pair in ALL},
                          "1 – 33"))
