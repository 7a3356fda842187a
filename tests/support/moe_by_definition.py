"""Mixtures of experts, computed by definition: one token, one expert and one choice at a time.

The numbers of tests/nn/test_moe.py come from PyTorch's autograd in float64; this is the same
arithmetic in loops, for cases that have no such numbers.
"""

import numpy as np


def gelu(x: np.ndarray) -> np.ndarray:
    """The tanh form of GELU."""
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def softmax(x: np.ndarray) -> np.ndarray:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def kept_choices(ids: np.ndarray, scores: np.ndarray, group: int, places: int,
                 order: str) -> np.ndarray:
    """Mark the choices (n, k) that find one of their expert's `places`, served one by one."""
    n, k = ids.shape
    kept = np.zeros((n, k), bool)
    for start in range(0, n, group):
        rows = range(start, min(start + group, n))
        queue = {"choice": [(i, j) for j in range(k) for i in rows],
                 "token": [(i, j) for i in rows for j in range(k)],
                 "probability": sorted(((i, j) for i in rows for j in range(k)),
                                       key=lambda at: -scores[at])}[order]
        taken = dict.fromkeys(ids.ravel().tolist(), 0)
        for i, j in queue:
            kept[i, j] = taken[ids[i, j]] < places
            taken[ids[i, j]] += 1
    return kept


def mixture(x: np.ndarray, state: dict[str, np.ndarray], ids: np.ndarray, gates: np.ndarray,
            kept: np.ndarray) -> np.ndarray:
    """Σ over kept choices of gate · expert(x): (n, d)."""
    y = np.zeros_like(x)
    for i, j in np.argwhere(kept):
        e = ids[i, j]
        wide = gelu(x[i] @ state["experts.c_fc.weight"][e] + state["experts.c_fc.bias"][e])
        y[i] += gates[i, j] * (wide @ state["experts.c_proj.weight"][e]
                               + state["experts.c_proj.bias"][e])
    return y
