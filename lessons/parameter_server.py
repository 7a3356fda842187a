"""A parameter server: one rank keeps the parameters, all others send it gradients.

    python lessons/parameter_server.py          mpirun -n 4 python lessons/parameter_server.py

                ┌───────────── rank 0: w ─────────────┐        push   gradient  ↑  n bytes
    pull w ↓    │ ↑ push g₁        │ ↑ g₂        │ ↑ g₃        pull   parameters ↓ n bytes
             rank 1              rank 2         rank 3

The older alternative to all-reduce (Li et al. 2014).  In every step 2(p - 1)n bytes pass through
the one server, so a step takes longer with every worker.  With a ring 4n(p - 1)/p pass through any
rank, less than 4n for any p.  But a server can go on without the slowest worker; no collective can.

`staleness=0`, synchronous: the gradients of a step are summed, in the order of the ranks, before
one update.  That is data-parallel training, up to the rounding of the sum.

`staleness=k`, bounded (Ho et al. 2013): each gradient is applied when it comes.  A worker that
has made i steps gets its parameters as soon as every other has made at least i - k.  A fast worker
runs at most k steps ahead, and computes on parameters that lack up to k steps of the others.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from minipar.backend import Array
from minipar.comm import Cluster, Communicator, Request
from minipar.launcher import launch

SERVER = 0


class Pull(NamedTuple):
    """One pull: the worker, how many steps it has made, and how many the slowest worker has."""

    worker: int
    step: int
    slowest: int


def serve(comm: Communicator, values: Array, update: Callable[[Array], None], num_steps: int,
          staleness: int = 0) -> list[Pull]:
    """Serve `num_steps` pushes of every other rank, on rank 0; return all pulls, in order.

    `values` is the flat array that is pulled; update(gradient) changes it in place.
    """
    check(comm, SERVER)
    if staleness < 0:
        raise ValueError(f"staleness={staleness}: it is 0 (synchronous) or more steps")
    server = _Server(comm, values, num_steps)
    for worker in server.workers:
        server.hand_out(worker)
    while any(request is not None for request in server.pushes):
        worker = comm.wait_any(server.pushes)
        server.take(worker)
        if staleness:
            update(server.gradients[worker])
        elif len({server.steps[w] for w in server.workers}) == 1:       # the last of this step
            update(sum(server.gradients[w] for w in server.workers))
        for waiting in list(server.waiting):
            if server.steps[waiting] - server.slowest() <= staleness:
                server.hand_out(waiting)
    for reply in server.replies.values():
        reply.wait()
    return server.pulls


def pull(comm: Communicator, out: Array) -> None:
    """Receive the parameters into `out`, on a worker: first of all, and after every push."""
    check(comm, comm.rank or 1)
    with comm.labelled("pull"):
        comm.recv(out, SERVER)


def push(comm: Communicator, gradient: Array) -> None:
    """Send a gradient to the server, on a worker; call `pull` next."""
    check(comm, comm.rank or 1)
    with comm.labelled("push"):
        comm.send(gradient, SERVER)


def check(comm: Communicator, expected: int) -> None:
    """Raise ValueError if there is no worker, or if this rank is not the expected one."""
    if comm.size < 2:
        raise ValueError("a parameter server needs at least 2 ranks: one serves, the others work")
    if comm.rank != expected:
        part = "serves" if comm.rank == SERVER else "works"
        raise ValueError(f"rank {comm.rank} {part}: rank {SERVER} calls serve, all others pull "
                         "and push")


class _Server:
    """The state of the server: steps of each worker, pending gradients, waiting workers."""

    def __init__(self, comm: Communicator, values: Array, num_steps: int):
        self.comm, self.values, self.num_steps = comm, values, num_steps
        self.workers = list(range(1, comm.size))
        self.steps = [0] * comm.size
        self.gradients = [np.empty_like(values) for _ in range(comm.size)]
        # the receive under way from each worker
        self.pushes: list[Request | None] = [None] * comm.size
        self.replies: dict[int, Request] = {}   # the send under way to each worker
        self.waiting: list[int] = []            # workers, in the order of arrival
        self.pulls: list[Pull] = []

    def slowest(self) -> int:
        """The number of steps that every worker has made."""
        return min(self.steps[w] for w in self.workers)

    def take(self, worker: int) -> None:
        """Take up a gradient of `worker` that has arrived."""
        self.pushes[worker] = None
        self.replies.pop(worker).wait()         # it is there: the worker has computed with it
        self.steps[worker] += 1
        self.waiting.append(worker)

    def hand_out(self, worker: int) -> None:
        """Send the present parameters to a worker, and post the receive of its next gradient."""
        if worker in self.waiting:
            self.waiting.remove(worker)
        self.pulls.append(Pull(worker, self.steps[worker], self.slowest()))
        with self.comm.labelled("pull"):
            self.replies[worker] = self.comm.isend(self.values.copy(), worker)
        if self.steps[worker] < self.num_steps:
            self.pushes[worker] = self.comm.irecv(self.gradients[worker], worker)


def main(comm: Communicator) -> None:
    """Fit 7 weights to data; each worker has some of its rows.

    In every step another worker takes 10 times as long as the others (in simulated time).
    """
    x, truth = np.random.default_rng(0).normal(size=(60, 7)), np.arange(7.0)
    for staleness in (0, 2):
        w, started = np.zeros(7), comm.now()
        if comm.rank == SERVER:
            def update(gradient: Array, w: Array = w) -> None:
                w -= 0.3 * gradient / len(x)
            pulls = serve(comm, w, update, 40, staleness)
            ahead = max(pull.step - pull.slowest for pull in pulls)
            print(f"staleness {staleness}: error {abs(w - truth).max():.4f} after 40 steps, "
                  f"{comm.now() - started:.2f} s; a worker was at most {ahead} steps ahead")
            continue
        rows = np.array_split(x, comm.size - 1)[comm.rank - 1]
        pull(comm, w)
        for step in range(40):
            flops = 10_000 if step % (comm.size - 1) == comm.rank - 1 else 1_000
            comm.report_compute("gradient", flops, 0, 0.0)
            push(comm, rows.T @ (rows @ w - rows @ truth))
            pull(comm, w)


if __name__ == "__main__":
    launch(main, cluster=Cluster(4, flops_per_second=1e6))
