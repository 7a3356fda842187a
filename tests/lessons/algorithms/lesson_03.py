"""Lesson 03: a row of `size` numbers for each rank."""

import numpy as np
import pytest

from minipar.comm import Cluster, Communicator, Deadlock, collectives
from tests.lessons.algorithms import Case, matrix, says, waits


def gather_rows(function, comm, size, names):
    function(comm, rows := matrix(comm, size))
    return rows


def by_all_gather(name):
    return lambda comm, size: collectives.all_gather(
        comm, matrix(comm, size)[comm.rank][None], algorithm=name)


def by_reduce_scatter(name):
    return lambda comm, size: collectives.reduce_scatter(
        comm, matrix(comm, size), algorithm=name)[0]


def on_power_of_two(call):
    """The call on as many of the ranks as a power of two; on the others, nothing."""
    def run(*args):
        at = next(i for i, arg in enumerate(args) if isinstance(arg, Communicator))
        comm = args[at]
        core = comm.split(0 if comm.rank < 2**(comm.size.bit_length() - 1) else None)
        return None if core is None else call(*args[:at], core, *args[at + 1:])
    return run


CASES = [
    Case("ring", gather_rows, by_all_gather("ring")),
    Case("doubling", on_power_of_two(gather_rows),
         on_power_of_two(by_all_gather("recursive_doubling"))),
    Case("bruck", gather_rows, by_all_gather("bruck")),
    Case("ring_reduce_scatter", lambda function, comm, size, names: function(
        comm, matrix(comm, size)), by_reduce_scatter("ring")),
    Case("halving", on_power_of_two(lambda function, comm, size, names: function(
        comm, matrix(comm, size))), on_power_of_two(by_reduce_scatter("recursive_halving"))),
]


def check_change(names):
    """Two ranks have both rows; of four each waits to receive from the next."""
    def body(comm):
        rows = np.arange(comm.size)[:, None] * (np.arange(comm.size) == comm.rank)[:, None]
        names["doubling"](comm, rows)
        return rows.ravel().tolist()
    assert Cluster(2).run(body)[0] == [[0, 1]] * 2
    with pytest.raises(Deadlock) as report:
        Cluster(4).run(body)
    assert waits(report) == {r: ("receive", (r + 1) % 4) for r in range(4)}
    says("03", "On 2 ranks nothing changes", "each rank waits to receive from the next")
