"""Gradients in float16, with loss scaling: a step that overflows is skipped.  Then it hangs."""

import numpy as np

import minipar as mp
from minipar.testing import record

X = np.linspace(-1, 3, 12)[:, None] ** np.arange(3)
Y = X @ [1.0, -2.0, 0.5]


def main(comm):
    weights, scale = np.zeros(3), 2.0 ** 14
    x, y = (np.array_split(array, comm.size)[comm.rank] for array in (X, Y))
    for _ in range(50):
        errors = x @ weights - y
        with np.errstate(over="ignore"):
            gradients = (scale * x * errors[:, None]).astype(np.float16)    # one for each sample
        if not np.isfinite(gradients).all():
            scale /= 2
            continue
        total = mp.all_reduce(comm, gradients.astype(np.float64).sum(axis=0))
        weights -= 0.002 * total / scale
    record("weights", weights)
    if comm.rank == 0:
        print("weights:", weights.round(3), "scale:", scale)


if __name__ == "__main__":
    mp.launch(main)
