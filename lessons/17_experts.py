"""Lesson 17. Experts: how does a model grow without more work for each token?

The MLP of a block becomes E experts, and a router sends each token to its k best ones.  The
parameters grow with E, the work of a token with k.  Experts live on different ranks, so tokens
travel to them and their results travel back: an all-to-all each way, and two more in backward.

    tokens of rank 0 ──┐ all-to-all ┌─▶ experts of rank 0 ─┐ all-to-all ┌─▶ Σ gate · result
    tokens of rank 1 ──┘   (rows)   └─▶ experts of rank 1 ─┘ (results)  └─▶ on the token's rank

    all p ranks send  4 k n d (p-1) numbers, if experts are used alike; n tokens of each rank
    balance loss      E Σ f P, f: shares of choices, P: mean scores; from 1 (alike) to E

A popular expert is a bottleneck: a capacity drops its surplus rows, or a loss makes the router use
all experts alike.  The library's: minipar/nn/moe/ and minipar/parallel/expert/exchange.py.

    python lessons/17_experts.py          mpirun -n 4 python lessons/17_experts.py
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from micro import Tensor, backward, linear, mlp
from support.kit import Lesson, Row
from support.lesson_17 import compare_with_library, one_process
from support.measuring import counted

from minipar.comm import Communicator
from minipar.launcher import launch


def route(x: np.ndarray, router: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores (n, E); the k best experts of each token, (n, k); their gates, which add up to 1."""
    scores = np.exp(x @ router)
    scores /= scores.sum(axis=1, keepdims=True)
    ids = np.argsort(-scores, axis=1)[:, :k]
    gates = np.take_along_axis(scores, ids, axis=1)
    return scores, ids, gates / gates.sum(axis=1, keepdims=True)


def masks(ids: np.ndarray, gates: np.ndarray, num_experts: int, capacity: int) -> np.ndarray:
    """(picks, gated), each (E capacity, n): which token takes which place, and with which gate."""
    n, k = ids.shape
    picks = np.zeros((num_experts, capacity, n))
    gated, taken = np.zeros_like(picks), np.zeros(num_experts, int)
    for choice in range(k):                 # first choices of all tokens, then second choices
        for token in range(n):
            e = ids[token, choice]
            if taken[e] < capacity:         # else the choice is dropped
                picks[e, taken[e], token] = 1
                gated[e, taken[e], token] = gates[token, choice]
            taken[e] += 1
    return np.stack([picks, gated]).reshape(2, -1, n)


def balance_loss(scores: np.ndarray, ids: np.ndarray) -> float:
    """E Σ f P.  f has no gradient; P has one, which makes popular experts less likely."""
    num_experts = scores.shape[1]
    f = np.bincount(ids.ravel(), minlength=num_experts) / ids.size
    return num_experts * f @ scores.mean(axis=0)


def all_to_all(comm: Communicator, rows: np.ndarray) -> np.ndarray:
    """Block i of my rows goes to rank i; block i of the result has come from rank i."""
    p, r, got = comm.size, comm.rank, np.empty_like(rows)
    here, there = np.split(got, p), np.split(rows, p)       # views
    here[r][:] = there[r]
    for i in range(1, p):
        comm.sendrecv(there[(r + i) % p], (r + i) % p, here[(r - i) % p], (r - i) % p)
    return got


def send(x: Tensor, comm: Communicator) -> Tensor:
    """Blocks of x by all-to-all.  Backward: block i of the gradient goes back to rank i."""
    return Tensor(all_to_all(comm, x.data), (x,), lambda g: (all_to_all(comm, g),))


def moe(comm: Communicator, x: Tensor, router: np.ndarray, expert: Callable, k: int, capacity: int):
    """This rank's tokens (n, d) through k of p experts; `expert` is its own.  Gates: constants."""
    _, ids, gates = route(x.data, router, k)
    picks, gated = masks(ids, gates, comm.size, capacity)
    rows = linear(Tensor(picks), x)         # (E capacity, d): rows for expert 0, for expert 1, …
    results = send(expert(send(rows, comm)), comm)
    return linear(Tensor(gated.T), results)     # Σ gate · result; dropped choices add nothing


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, n, d, k, draw = comm.size, 12, 16, 2, np.random.default_rng(0)
    xs, router, capacity = draw.random((p, n, d)), draw.normal(size=(d, p)), -(-k * n // p)
    weights = draw.normal(0, .3, (p, 2, d, d))          # p experts of 2 layers
    own = [Tensor(w) for w in weights[comm.rank]]
    forward, y = counted(comm, lambda: moe(comm, Tensor(xs[comm.rank]), router,
                                           partial(mlp, weights=own), k, capacity))
    back, _ = counted(comm, lambda: backward(y, np.ones((n, d))))
    right, grads = one_process(xs, weights, [masks(*route(x, router, k)[1:], p, capacity)[1]
                                             for x in xs])
    off = max(np.abs(w.grad - grad).max() for w, grad in zip(own, grads[comm.rank]))
    sent, each = forward.bytes_sent() + back.bytes_sent(), 4 * p * capacity * d * (p - 1) * 8
    lesson.table([
        Row("difference from one process", 1e-13, np.abs(y.data - right[comm.rank]).max(), "", "≤"),
        Row("… of the gradient of my expert", 1e-12, off, "", "≤"),
        Row("four all-to-alls: 4 E C d (p-1)", each * (comm.rank == 0), sent, "B"),
        Row("balance loss if one expert gets all: E", p, balance_loss(
            np.eye(p)[np.zeros(n, int)], np.zeros((n, 1), int)))],
        f"E = p = {p} experts, k = {k}, n = {n}, d = {d}, capacity C = ⌈k n/E⌉ = {capacity}")
    compare_with_library(lesson, moe)
    lesson.takeaway("Experts add parameters without work for each token. The price is two all-to-"
                    "alls in forward, two in backward; and all wait for the busiest expert.")
    lesson.exercises(questions=[
        "Why is the number of experts free for a token, and what is it not free for?",
        "In send, write `lambda g: (g,)` in place of `lambda g: (all_to_all(comm, g),)`. What is "
        "still right, what is wrong, and who notices?",
        "A capacity per rank, not per sequence: what does a different number of ranks change?",
        "Top-1 with gates that add up to 1: what does the router learn?",
        "Experts across nodes: which messages cross, and how does DeepSeek-V3 limit them?"])


if __name__ == "__main__":
    launch(main)
