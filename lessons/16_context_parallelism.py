"""Lesson 16. Context parallelism: what if one sequence is too long for a rank?

Every rank takes some of the t tokens.  A GPT treats each token by itself, except in attention,
where a query needs the keys and values of all tokens before it.  Two ways bring them together:

    ring       queries stay, blocks of k, v travel        hop      0     1     2     3
               round the ring.  Two softmaxes over        rank 0   kv₀   kv₃   kv₂   kv₁
               some keys merge into one, exactly.         rank 1   kv₁   kv₀   kv₃   kv₂
    Ulysses    an all-to-all turns t/p tokens of h heads into t tokens of h/p heads, and back
    sent by all ranks, of width d      ring  2(p-1) · t·d      Ulysses  4(p-1)/p · t·d

An early query sees few keys, so in zig-zag order each rank has an early and a late piece:

    contiguous   00112233    the last rank works (2p-1)/p times as much as the mean
    zig-zag      01233210    all ranks work the same

The library's: minipar/parallel/context/ring.py, and ulysses.py beside it.

    python lessons/16_context_parallelism.py         mpirun -n 4 python lessons/16_…
"""

from functools import partial

import numpy as np
from support.kit import Lesson, Row
from support.lesson_16 import compare_with_library
from support.measuring import counted, total

from minipar.comm import Communicator
from minipar.launcher import launch

Array = np.ndarray


def attend(q: Array, k: Array, v: Array, at: Array, keys_at: Array) -> tuple:
    """A softmax over some keys, not yet divided: the largest score m, Σ exp(x - m), Σ exp(x - m) v.

    Queries (heads, tokens, n) at positions `at` see the keys up to their own position.
    """
    scores = np.where(at[:, None] >= keys_at, q @ k.mT / q.shape[-1]**.5, -1e9)  # -∞ gives nan
    m = scores.max(-1, keepdims=True)
    weights = np.exp(scores - m)
    return m, weights.sum(-1, keepdims=True), weights @ v


def merge(one: tuple, two: tuple) -> tuple:
    """The softmax over the keys of both: bring both to the same m, then add."""
    (m1, s1, o1), (m2, s2, o2) = one, two
    m = np.maximum(m1, m2)
    w1, w2 = np.exp(m1 - m), np.exp(m2 - m)
    return m, w1 * s1 + w2 * s2, w1 * o1 + w2 * o2


def ring_attention(comm: Communicator, q: Array, k: Array, v: Array, positions: Array) -> Array:
    """Attention of this rank's queries to all keys; rank i has the tokens at positions[i]."""
    p, r, kv = comm.size, comm.rank, np.stack([k, v])
    so_far = attend(q, k, v, positions[r], positions[r])
    for hop in range(1, p):
        arrived = np.empty_like(kv)
        comm.sendrecv(kv, (r + 1) % p, arrived, (r - 1) % p)
        kv = arrived                                # they began on rank r - hop (-1: the last)
        so_far = merge(so_far, attend(q, *kv, positions[r], positions[r - hop]))
    _, s, o = so_far
    return o / s


def zigzag(length: int, p: int) -> Array:
    """The positions that each rank has: of 2p pieces rank r has piece r, and r from the end."""
    pieces = np.split(np.arange(length), 2 * p)
    return np.array([np.concatenate([pieces[r], pieces[-1 - r]]) for r in range(p)])


def all_to_all(comm: Communicator, rows: Array) -> Array:
    """rows[i] goes to rank i; row i of the result has come from rank i.  Lesson 05's `pairwise`."""
    p, r, got = comm.size, comm.rank, np.empty(rows.shape, rows.dtype)
    got[r] = rows[r]
    for k in range(1, p):
        comm.sendrecv(rows[(r + k) % p], (r + k) % p, got[(r - k) % p], (r - k) % p)
    return got


def ulysses(comm: Communicator, q: Array, k: Array, v: Array, positions: Array) -> Array:
    """The same: tokens for heads (p divides h), compute, and back.  q (h heads, c tokens, n)."""
    p, (h, c, n), at = comm.size, q.shape, positions.reshape(-1)

    def to_heads(x: Array) -> Array:                # c tokens of h heads → p c tokens of h/p heads
        return all_to_all(comm, x.reshape(p, h // p, c, n)).swapaxes(0, 1).reshape(h // p, -1, n)
    _, s, o = attend(to_heads(q), to_heads(k), to_heads(v), at, at)
    return all_to_all(comm, (o / s).reshape(h // p, p, c, n).swapaxes(0, 1)).reshape(h, c, n)


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, c, h, n, rows = comm.size, 8, 2 * comm.size, 4, []           # c tokens of each rank
    q, k, v = np.random.default_rng(0).normal(size=(3, h, p * c, n))
    at, dealt = np.arange(p * c), zigzag(p * c, p)
    mine, (_, s, o) = dealt[comm.rank], attend(q, k, v, at, at)     # all on one process
    for name, attention, factor in (("ring", ring_attention, 2 * p), ("Ulysses", ulysses, 4)):
        trace, found = counted(comm, partial(
            attention, comm, q[:, mine], k[:, mine], v[:, mine], dealt))
        off, sent = np.abs(found - (o / s)[:, mine]).max(), total(comm, trace.bytes_sent())
        rows += [Row(f"{name}: difference from one process", 1e-14, off, "", "≤"),
                 Row("    sent by all ranks", factor * (p - 1) * c * h * n * 8, sent, "B")]
    for name, order, most in (("contiguous", at.reshape(p, c), ((2 * p - 1) * c + 1) / (p * c + 1)),
                              ("zig-zag", dealt, 1.0)):
        seen = (order + 1).sum(axis=1)              # pairs of a query and a key, of each rank
        rows.append(Row(f"{name}: pairs of the busiest / mean", most, seen.max() / seen.mean()))
    lesson.table(rows, f"p = {p}: {p * c} tokens, {h} heads of {n}")
    compare_with_library(lesson, ring_attention, ulysses)
    lesson.takeaway("Keys travel, queries stay, and partial softmaxes merge exactly; in zig-zag "
                    "order all ranks compute the same.")
    lesson.exercises(questions=[
        "In merge, write `m = m1` in place of `m = np.maximum(m1, m2)`. When is the result wrong?",
        "merge adds m, s and o of both parts. Would it be enough to have o/s of both?",
        "Eight heads of queries share one head of keys: what do the ring and Ulysses send then?",
        "Packed documents do not see one another: which order of tokens is balanced then?"])


if __name__ == "__main__":
    launch(main)
