"""Lesson 31. Few bits, seldom: what need not cross a slow link?

Between two nodes with 100 Mbit/s, the sum of gradients takes longer than all that is computed.  A
rank can send few numbers, few bits of each, or send seldom.  What it has not said it remembers,
and says later: *error feedback*, e = what I wanted to say - what I said.

    all gradients   ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓      2 (p-1)/p · n b       bytes that a rank sends
    the largest k   ▓▓ values, indices ▒▒         (p-1) k (b + 4)       less if k/n < 1/p, for b = 4
    p qᵀ, rank r    ▓▓▓                           2 (p-1)/p · r (rows + columns) b
    signs           ▒ a bit for each, a scale     2 (p-1)/p · n/8, and 2 (p-1) b
    H steps alone   ▓▓▓▓▓▓▓▓ … once in H steps    2 (p-1)/p · n b / H

n numbers of b bytes, p ranks.  Library: minipar/parallel/wire_formats/, minipar/parallel/data/.

    python lessons/31_few_bits_seldom.py        mpirun -n 4 python lessons/31_few_bits_seldom.py
"""

from functools import partial

import numpy as np
from micro import all_gather, all_reduce
from support.kit import Lesson, Row
from support.lesson_31 import compare_with_library
from support.measuring import counted

from minipar.comm import Communicator
from minipar.launcher import launch


def dgc(comm: Communicator, grad: np.ndarray, u: np.ndarray, v: np.ndarray, k: int,
        momentum: float) -> np.ndarray:
    """The sum of each rank's k largest v: what it has not sent.  u: momentum; both change."""
    u[:] = momentum * u + grad                  # before the sum: v has all that u would have added
    v += u
    sent = np.sort(np.argsort(-np.abs(v), axis=None, kind="stable")[:k]).astype(np.int32)
    values = all_gather(comm, v.flat[sent], k * comm.size)
    places, total = all_gather(comm, sent, k * comm.size), np.zeros_like(v)
    np.add.at(total.reshape(-1), places, values)        # two ranks may have sent the same place
    u.flat[sent] = v.flat[sent] = 0
    return total


def power_sgd(comm: Communicator, grad: np.ndarray, error: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The sum as p qᵀ, (rows, r) and (columns, r): both can be added on their way."""
    m = grad + error
    p, _ = np.linalg.qr(all_reduce(comm, m @ np.linalg.qr(q)[0]))
    q[:] = all_reduce(comm, m.T @ p)            # kept: the next step begins where this one ended
    error[:] = m - p @ q.T / comm.size
    return p @ q.T


def encode(numbers: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """A message in bytes: the scale (1,), and a bit for each number."""
    return np.concatenate([scale.view(np.uint8), np.packbits(numbers >= 0)])


def decode(message: np.ndarray) -> np.ndarray:
    """Plus or minus the scale."""
    return message[:8].view(float) * (2.0 * np.unpackbits(message[8:]) - 1)


def signs(comm: Communicator, grad: np.ndarray, error: np.ndarray,
          owner_error: np.ndarray) -> np.ndarray:
    """The sum of signs of (n,), n a multiple of 8 p; the owner of a piece tells signs of it."""
    p, r, numbers = comm.size, comm.rank, grad + error
    scale = np.sqrt(np.mean(numbers**2, keepdims=True))
    messages = [encode(piece, scale) for piece in np.split(numbers, p)]
    error[:] = numbers - np.concatenate([decode(each) for each in messages])
    mine, arrived = decode(messages[r]) + owner_error, np.empty_like(messages[r])
    for i in range(1, p):
        comm.sendrecv(messages[(r + i) % p], (r + i) % p, arrived, (r - i) % p)
        mine += decode(arrived)
    told = encode(mine, np.sqrt(np.mean(mine**2, keepdims=True)))
    owner_error[:] = mine - decode(told)
    whole = all_gather(comm, told, p * told.size)
    return np.concatenate([decode(each) for each in np.split(whole, p)])


def diloco(comm: Communicator, w: np.ndarray, theta: np.ndarray, velocity: np.ndarray,
           rate: float = 0.7, momentum: float = 0.9) -> None:
    """After H steps of each rank alone from theta to w: a Nesterov step along the mean of these."""
    delta = all_reduce(comm, theta - w) / comm.size     # old minus new, as a gradient points
    velocity[:] = momentum * velocity + delta
    theta -= rate * (delta + momentum * velocity)
    w[:] = theta


def main(comm: Communicator) -> None:
    lesson, p, r = Lesson(comm, __file__, __doc__), comm.size, comm.rank
    grads = np.random.default_rng(0).standard_normal((p, 8 * p, 8))         # of all ranks
    (g, flat), alone, n = (grads[r], grads[r].ravel()), grads.sum(0), grads[0].size
    error, owned, w = np.zeros(n), np.zeros(n // p), -g         # w: one step from 0, of rate 1
    diloco(comm, w, 0 * g, 0 * g, 1.0, 0.0)
    exact = (dgc(comm, g, 0 * g, 0 * g, n, 0.0), power_sgd(comm, g, 0 * g, np.eye(8)), -p * w)
    later = signs(comm, flat, error, owned) + all_reduce(comm, error) + all_gather(comm, owned, n)
    rows = [Row("k = n; r = 8; H = η = 1, μ = 0: difference from one process", 1e-12,
                max(np.abs(each - alone).max() for each in exact), "", "≤"),
            Row("signs, with errors added", 1e-12, np.abs(later - alone.ravel()).max(), "", "≤")]
    for name, num_bytes, call in (
            ("DGC, k = n/16", 12 * p * n // 16, partial(dgc, comm, g, 0 * g, 0 * g, n // 16, 0.9)),
            ("PowerSGD, r = 2", 256 * (p + 1), partial(power_sgd, comm, g, 0 * g, np.eye(8, 2))),
            ("signs", 2 * (n // 8 + 8 * p), partial(signs, comm, flat, 0 * error, 0 * owned)),
            ("DiLoCo, every H steps", 16 * n, partial(diloco, comm, w, 0 * w, 0 * w))):
        trace, _ = counted(comm, call)          # of all ranks, on rank 0
        rows.append(Row(f"{name}: sent by all ranks", num_bytes * (p - 1) * (r == 0),
                        trace.bytes_sent(), "B"))
    lesson.table(rows, f"n = {n} numbers on p = {p} ranks; a dense sum: {16 * n * (p - 1):,} B")
    compare_with_library(lesson, dgc, power_sgd, signs, diloco)
    lesson.takeaway("A gradient need not cross a slow link whole, nor at once, if what was left "
                    "out is remembered. What that costs in loss, only a run on your task says.")
    lesson.exercises("newton_schulz", "lamb_direction", "lars_ratio", "moment_codes", questions=[
        "In dgc, write `v.flat[sent] = 0` in place of `u.flat[sent] = v.flat[sent] = 0`. What is "
        "DGC now if it sends everything?",
        "Why do the largest numbers not go round a ring, as dense sums and PowerSGD's factors do?",
        "8 nodes with 100 Mbit/s and 0.5 ms sum a matrix of 4096 × 4096 float32, or of 64 × 64. "
        "How long does a ring take, dense and by PowerSGD of rank 4?"])


if __name__ == "__main__":
    launch(main)
