"""An MLP, its last two layers cut over the ranks.  The first layer learns the wrong thing."""

import numpy as np

import minipar as mp
from minipar import autograd as ag
from minipar.parallel.conjugate import reduce_from
from minipar.testing import record

SHAPES = {"first": (6, 4), "up": (4, 8), "down": (8, 1)}


def shard(name, values, comm):
    """This rank's columns of `up`, rows of `down`; all of `first`."""
    if name == "first":
        return values
    return np.array_split(values, comm.size, axis=1 if name == "up" else 0)[comm.rank].copy()


def loss_of(x, y, weights, comm):
    hidden = ag.tanh(x @ weights["first"])
    partial = ag.tanh(hidden @ weights["up"]) @ weights["down"]
    errors = reduce_from(partial, comm) - y
    return (errors * errors).sum()


def main(comm):
    rng = np.random.default_rng(0)
    x, y = mp.Tensor(rng.normal(size=(5, 6))), mp.Tensor(rng.normal(size=(5, 1)))
    whole = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    weights = {name: mp.Tensor(shard(name, values, comm), requires_grad=True)
               for name, values in whole.items()}
    for step in range(3):
        loss = loss_of(x, y, weights, comm)
        loss.backward()
        for weight in weights.values():
            weight.data -= 0.01 * weight.grad
            weight.grad = None
        record(f"loss {step}", loss.data)
        if comm.rank == 0:
            print(f"step {step}: loss {float(loss.data):.6f}")
    record("first", weights["first"])


if __name__ == "__main__":
    mp.launch(main)
