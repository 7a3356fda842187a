"""Lesson 05: a row of `size` numbers for each rank."""

from functools import partial

from minipar.comm import Cluster, collectives
from tests.lessons.algorithms import Case, matrix, says


def on_matrix(function, comm, size, names):
    return function(comm, matrix(comm, size))


def by_all_to_all(name):
    return lambda comm, size: collectives.all_to_all(comm, matrix(comm, size), algorithm=name)


def leaving(wait):
    """When simulated ranks leave a barrier that rank r reaches after r seconds."""
    def late(comm):
        comm.report_compute("compute", int(comm.rank * comm.cluster.flops_per_second), 0, 0.0)
        wait(comm)
        return comm.now()

    def run(comm):
        wait(comm)
        return Cluster(comm.size).run(late)[0]
    return run


CASES = [
    Case("pairwise", on_matrix, by_all_to_all("pairwise")),
    Case("bruck", on_matrix, by_all_to_all("bruck")),
    Case("scan", on_matrix, lambda comm, size: collectives.scan(
        comm, matrix(comm, size), algorithm="recursive_doubling")),
    Case("barrier", lambda function, comm, size, names: leaving(function)(comm),
         lambda comm, size: leaving(partial(collectives.barrier, algorithm="dissemination"))(comm),
         (1,)),
]


def check_change(names):
    """It ends; only ranks 4, 6 and 7 wait for rank 3, if messages are buffered."""
    def body(comm):
        if comm.rank == 3:
            comm.report_compute("compute", int(comm.cluster.flops_per_second), 0, 0.0)  # 1 s late
        names["barrier"](comm)
        return comm.now() >= 1
    buffered, taken = (Cluster(8, eager=limit).run(body)[0] for limit in (1, 0))
    assert [rank for rank, waited in enumerate(buffered) if waited] == [3, 4, 6, 7] and all(taken)
    says("05", "It does not hang", "only ranks 4, 6 and 7 hear of it", "all wait for rank 3")
