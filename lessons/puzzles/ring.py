"""Each rank passes gradients on around the ring, until it has added up all of them.  It hangs."""

import numpy as np

import minipar as mp
from minipar.testing import record

X = np.linspace(-1, 1, 12)[:, None] ** np.arange(3)         # 12 samples: 1, x, x²
Y = X @ [1.0, -2.0, 0.5]


def sum_over_ring(comm, mine):
    """The sum of all ranks' arrays, in p - 1 rounds."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total, passed_on = mine.copy(), mine
    for _ in range(comm.size - 1):
        arrived = np.empty_like(mine)
        comm.send(passed_on, right)
        comm.recv(arrived, left)
        total += arrived
        passed_on = arrived
    return total


def main(comm):
    weights = np.zeros(3)
    x, y = (np.array_split(array, comm.size)[comm.rank] for array in (X, Y))
    for _ in range(50):
        weights -= 0.05 * sum_over_ring(comm, x.T @ (x @ weights - y))
    record("weights", weights)
    if comm.rank == 0:
        print("weights:", weights.round(3))


if __name__ == "__main__":
    mp.launch(main)
