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

import numpy as np
from micro import Tensor, backward, linear, mlp
from support.kit import Lesson, Row
from support.lesson_17 import compare_with_library, one_process
from support.measuring import counted, total

from minipar.comm import Communicator
from minipar.launcher import launch


def route(x: np.ndarray, router: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores (n, E); the k best experts of each token, (n, k); their gates, which add up to 1."""
    scores = np.exp(x @ router)
    scores /= scores.sum(axis=1, keepdims=True)
    ids = np.argsort(-scores, axis=1)[:, :k]
    gates = np.take_along_axis(scores, ids, axis=1)
    return scores, ids, gates / gates.sum(axis=1, keepdims=True)


def masks(ids: np.ndarray, gates: np.ndarray, num_experts: int,
          capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """Two matrices (E capacity, n): where a place takes a token, one has 1, the other its gate."""
    picks, gated = np.zeros((2, num_experts * capacity, len(ids)))
    taken = [0] * num_experts
    for choice in range(ids.shape[1]):              # first choices of all tokens, then second ones
        for token, expert in enumerate(ids[:, choice]):
            if taken[expert] < capacity:            # else the choice is dropped
                place = expert * capacity + taken[expert]
                picks[place, token], gated[place, token] = 1, gates[token, choice]
                taken[expert] += 1
    return picks, gated


def balance_loss(scores: np.ndarray, ids: np.ndarray) -> float:
    """E Σ f P.  f has no gradient; P has one, which makes popular experts less likely."""
    num_experts = scores.shape[1]
    f = np.bincount(ids.ravel(), minlength=num_experts) / ids.size
    return num_experts * f @ scores.mean(axis=0)


def all_to_all(comm: Communicator, rows: np.ndarray) -> np.ndarray:
    """Block i of my rows goes to rank i; block i of the result has come from rank i."""
    p, r, result = comm.size, comm.rank, np.empty_like(rows)
    outgoing, arrived = np.split(rows, p), np.split(result, p)      # blocks, as views
    arrived[r][:] = outgoing[r]
    for i in range(1, p):
        dest, source = (r + i) % p, (r - i) % p
        comm.sendrecv(outgoing[dest], dest, arrived[source], source)
    return result


def send(x: Tensor, comm: Communicator) -> Tensor:
    """Blocks of x by all-to-all.  Backward: block i of the gradient goes back to rank i."""
    return Tensor(all_to_all(comm, x.data), (x,), lambda g: (all_to_all(comm, g),))


def moe(comm: Communicator, x: Tensor, router: np.ndarray, expert: Callable, k: int, capacity: int):
    """This rank's tokens (n, d) through k of p experts; `expert` is its own.  Gates: constants."""
    _, ids, gates = route(x.data, router, k)
    picks, gated = masks(ids, gates, comm.size, capacity)
    rows = linear(Tensor(picks), x)             # picks x: rows for expert 0, for expert 1, …
    results = send(expert(send(rows, comm)), comm)          # there, computed, and back
    return linear(Tensor(gated.T), results)     # Σ gate · result; dropped choices add nothing


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, n, d, k, draw = comm.size, 12, 16, 2, np.random.default_rng(0)
    capacity, xs, router = -(-k * n // p), draw.random((p, n, d)), draw.normal(size=(d, p))
    weights = draw.normal(0, .3, (p, 2, d, d))          # p experts, MLPs of 2 layers
    x, mine = Tensor(xs[comm.rank]), [Tensor(w) for w in weights[comm.rank]]
    forward, y = counted(comm, lambda: moe(comm, x, router, lambda h: mlp(h, mine), k, capacity))
    back, _ = counted(comm, lambda: backward(y, np.ones((n, d))))
    gated = [masks(*route(each, router, k)[1:], p, capacity)[1] for each in xs]
    right, grads = one_process(xs, weights, gated)
    off = max(np.abs(w.grad - grad).max() for w, grad in zip(mine, grads[comm.rank]))
    to_one = np.zeros((n, 1), int)                      # all tokens choose expert 0
    lesson.table([
        Row("difference from one process", 1e-13, np.abs(y.data - right[comm.rank]).max(), "", "≤"),
        Row("… of the gradient of my expert", 1e-12, off, "", "≤"),
        Row("four all-to-alls: 4 E C d (p-1)", 4 * p * capacity * d * (p - 1) * 8,
            total(comm, forward.bytes_sent() + back.bytes_sent()), "B"),
        Row("balance loss if one expert gets all: E", p,
            balance_loss(np.eye(p)[to_one[:, 0]], to_one))],
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
