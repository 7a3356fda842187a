"""A pipeline: all microbatches go forward, then all go backward.  It hangs between the two."""

import numpy as np

import minipar as mp
from minipar.testing import record

NUM_LAYERS, NUM_MICROBATCHES = 4, 3


def main(comm):
    rng = np.random.default_rng(0)
    layers = np.array_split(rng.normal(size=(NUM_LAYERS, 5, 5)) / 3, comm.size)[comm.rank]
    inputs, targets = rng.normal(size=(2, NUM_MICROBATCHES, 2, 5))
    is_first, is_last = comm.rank == 0, comm.rank == comm.size - 1
    saved, signals = [], []                 # inputs of each layer; the loss's gradients
    for i in range(NUM_MICROBATCHES):
        x = inputs[i]
        if not is_first:
            x = np.empty((2, 5))
            comm.recv(x, comm.rank - 1, tag=i)
        saved.append([])
        for layer in layers:
            saved[i].append(x)
            x = x @ layer
        signals.append(x - targets[i])
        if not is_last:
            comm.send(x, comm.rank + 1, tag=i)
    gradients = np.zeros_like(layers)
    order = reversed(range(NUM_MICROBATCHES)) if is_last else range(NUM_MICROBATCHES)
    for i in order:
        signal = signals[i]
        if not is_last:
            comm.recv(signal, comm.rank + 1, tag=i)
        for n in reversed(range(len(layers))):
            gradients[n] += saved[i][n].T @ signal
            signal = signal @ layers[n].T
        if not is_first:
            comm.send(signal, comm.rank - 1, tag=i)
    mine = NUM_LAYERS * comm.rank // comm.size, NUM_LAYERS * (comm.rank + 1) // comm.size
    record("gradients", gradients, shape=(NUM_LAYERS, 5, 5), box=[[mine], None, None])
    print(f"stage {comm.rank}: the norm of its gradients is {np.linalg.norm(gradients):.4f}")


if __name__ == "__main__":
    mp.launch(main)
