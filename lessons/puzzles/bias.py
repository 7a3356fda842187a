"""A layer cut by rows, with a bias.  The loss depends on the number of ranks."""

import numpy as np

import minipar as mp
from minipar import autograd as ag
from minipar.parallel.conjugate import copy_to, reduce_from
from minipar.testing import record


def loss_of(x, y, up, down, bias, comm):
    hidden = ag.tanh(copy_to(x, comm) @ up)
    output = reduce_from(ag.linear(hidden, down, bias), comm)
    return ((output - y) * (output - y)).sum()


def main(comm):
    rng = np.random.default_rng(0)
    x, y = mp.Tensor(rng.normal(size=(5, 6))), mp.Tensor(rng.normal(size=(5, 2)))
    columns = np.array_split(rng.normal(size=(6, 8)), comm.size, axis=1)[comm.rank]
    rows = np.array_split(rng.normal(size=(8, 2)), comm.size, axis=0)[comm.rank]
    up, down = mp.Tensor(columns.copy(), requires_grad=True), mp.Tensor(rows, requires_grad=True)
    bias = mp.Tensor(rng.normal(size=2), requires_grad=True)
    for step in range(3):
        loss = loss_of(x, y, up, down, bias, comm)
        loss.backward()
        for weight in (up, down, bias):
            weight.data -= 0.01 * weight.grad
            weight.grad = None
        record(f"loss {step}", loss.data)
        if comm.rank == 0:
            print(f"step {step}: loss {float(loss.data):.6f}")
    record("bias", bias)


if __name__ == "__main__":
    mp.launch(main)
