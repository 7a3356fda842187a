"""Data parallelism that prints its loss every ten steps.  It prints nothing and hangs."""

import numpy as np

import minipar as mp
from minipar.testing import record

X = np.linspace(-1, 1, 12)[:, None] ** np.arange(3)
Y = X @ [1.0, -2.0, 0.5]


def main(comm):
    weights = np.zeros(3)
    x, y = (np.array_split(array, comm.size)[comm.rank] for array in (X, Y))
    for step in range(31):
        errors = x @ weights - y
        if comm.rank == 0 and step % 10 == 0:
            loss = mp.all_reduce(comm, np.array([errors @ errors]))
            print(f"step {step}: loss {loss[0]:.4f}")
        weights -= 0.05 * mp.all_reduce(comm, x.T @ errors)
    record("weights", weights)


if __name__ == "__main__":
    mp.launch(main)
