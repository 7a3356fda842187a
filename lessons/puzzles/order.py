"""Large gradients are sent first, so that they are there early.  Some runs hang, others fail."""

import numpy as np

import minipar as mp
from minipar.testing import record

X = np.linspace(-1, 1, 12)[:, None] * [1.0, 0.3, -0.2]
Y = X @ [1.0, -2.0, 0.5] + 4 * np.linspace(-1, 1, 12) ** 3


def main(comm):
    weights = {"slope": np.zeros(3), "offset": np.zeros(1)}
    x, y = (np.array_split(array, comm.size)[comm.rank] for array in (X, Y))
    for _ in range(50):
        errors = x @ weights["slope"] + weights["offset"] - y
        gradients = {"slope": x.T @ errors, "offset": errors.sum(keepdims=True)}
        for name in sorted(gradients, key=lambda name: -abs(gradients[name]).max()):
            weights[name] -= 0.05 * mp.all_reduce(comm, gradients[name])
    for name, values in weights.items():
        record(name, values)
    if comm.rank == 0:
        print({name: values.round(3).tolist() for name, values in weights.items()})


if __name__ == "__main__":
    mp.launch(main)
