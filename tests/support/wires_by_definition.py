"""Sums by few numbers or few bits, by definition: all ranks in one process, one tensor at a time.

Each takes gradients (steps, ranks, …), shares of a sum, and yields what a step uses in place of the
sum: an approximation of it, or the direction that momentum, Adam or a vote of signs makes of it.
"""

import math

import numpy as np

from minipar.comm.collectives import chunk_bounds


def full(gradients):
    """The sum itself."""
    yield from gradients.sum(1)


def powersgd(gradients, q, rank, start=0):
    """Two products by the last Q, at first `q`; before step `start` the sum itself."""
    errors = np.zeros_like(gradients[0])
    for step, g in enumerate(gradients):
        if step < start:
            yield g.sum(0)
            continue
        matrices = g + errors
        p = np.linalg.qr(sum(m @ np.linalg.qr(q)[0] for m in matrices))[0]
        q = sum(m.T @ p for m in matrices)
        errors = matrices - p @ q.T / len(g)
        yield p @ q.T


def momentum_sgd(gradients, momentum):
    """Momentum after the sum."""
    velocity = 0.0
    for g in gradients:
        velocity = momentum * velocity + g.sum(0)
        yield velocity


def dgc(gradients, density, momentum=0.0, masking=True, nesterov=False):
    """One matrix, rank by rank, number by number."""
    u, v = np.zeros_like(gradients[0]), np.zeros_like(gradients[0])
    k = math.ceil(density * gradients[0, 0].size)
    for g in gradients:
        total = np.zeros(g[0].size)
        for rank in range(len(g)):
            u[rank] = momentum * (u[rank] + g[rank]) if nesterov else momentum * u[rank] + g[rank]
            v[rank] += u[rank] + g[rank] if nesterov else u[rank]
            waiting, pushing = v[rank].reshape(-1), u[rank].reshape(-1)
            order = sorted(range(waiting.size), key=lambda i: (-abs(waiting[i]), i))
            for i in order[:k]:
                total[i] += waiting[i]
                waiting[i] = 0
                if masking:
                    pushing[i] = 0
        yield total.reshape(g[0].shape)


def one_bit(c):
    return np.linalg.norm(c) / math.sqrt(max(1, c.size)) * np.where(c >= 0, 1, -1)


class SumOfSigns:
    """Two roundings to one bit, each with its error; of flat gradients (ranks, n)."""

    def __init__(self, gradients):
        self.errors, self.owners = np.zeros_like(gradients), np.zeros_like(gradients[0])

    def __call__(self, gradients):
        c = gradients + self.errors
        said = np.array([one_bit(each) for each in c])
        self.errors, total = c - said, said.sum(0) + self.owners
        out = np.concatenate([one_bit(total[a:b]) for a, b in chunk_bounds(total.size, len(c))])
        self.owners = total - out
        return out


def signs(gradients):
    add = SumOfSigns(gradients[0])
    yield from (add(g) for g in gradients)


def onebit_adam(gradients, start, beta1=0.9, beta2=0.97, epsilon=1e-8):
    add, m, v = SumOfSigns(gradients[0]), 0.0, 0.0
    for step, g in enumerate(gradients):
        if step < start:
            m = beta1 * m + (1 - beta1) * g.sum(0)
            v = beta2 * v + (1 - beta2) * g.sum(0)**2
        else:
            m = add(beta1 * m / len(g) + (1 - beta1) * g)
        yield np.where(v > 0, m / (np.sqrt(v) + epsilon), 0)


def onebit_sgd(gradients):
    """Two means for each column of a matrix, number by number."""
    errors = np.zeros_like(gradients[0])
    for g in gradients:
        c, said = g + errors, np.zeros_like(g)
        for rank, column in np.ndindex(len(g), g.shape[2]):
            values = c[rank, :, column]
            for chosen in (values >= 0, values < 0):
                if chosen.any():
                    said[rank, chosen, column] = values[chosen].mean()
        errors = c - said
        yield said.sum(0)


def sign_vote(gradients, momentum):
    u = np.zeros_like(gradients[0])
    for g in gradients:
        u = momentum * u + (1 - momentum) * g
        yield np.sign(np.sign(u).sum(0))


def threshold(gradients, limit):
    errors = np.zeros_like(gradients[0])
    for g in gradients:
        c = g + errors
        said = limit * ((c > limit).astype(float) - (c < -limit))
        errors = c - said
        yield said.sum(0)
