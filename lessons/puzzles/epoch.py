"""Ten samples on four ranks, one after the other.  It hangs at the end of the first epoch."""

import numpy as np

import minipar as mp
from minipar.testing import record

X = np.linspace(-1, 1, 10)[:, None] ** np.arange(3)
Y = X @ [1.0, -2.0, 0.5]


def main(comm):
    weights = np.zeros(3)
    for _ in range(20):
        gradient = np.zeros(3)
        for i in range(comm.rank, len(X), comm.size):       # this rank's samples
            mine = X[i] * (X[i] @ weights - Y[i])
            gradient += mp.all_reduce(comm, mine)
        weights -= 0.05 * gradient
    record("weights", weights)
    if comm.rank == 0:
        print("weights:", weights.round(3))


if __name__ == "__main__":
    mp.launch(main)
