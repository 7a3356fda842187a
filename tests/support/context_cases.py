"""Plain attention by its definition, with gradients, for the tests of context parallelism."""

from typing import NamedTuple

import numpy as np

from minipar.parallel.context.mask import AttentionMask


class PlainCase(NamedTuple):
    """q, grad (b, heads, t, n), k, v (b, kv heads, t, n), and who sees whom (b or 1, t, t)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    grad: np.ndarray
    mask: AttentionMask

    def seen(self) -> np.ndarray:
        """The mask of whole sequences."""
        everything = np.arange(self.q.shape[2])
        return self.mask.visible(everything, everything)


def draw(heads: int, kv_heads: int, length: int, batch: int, mask: AttentionMask) -> PlainCase:
    """Random numbers of these sizes; heads are 4 wide."""
    numbers = np.random.default_rng((heads, length))
    q, grad = numbers.standard_normal((2, batch, heads, length, 4))
    k, v = numbers.standard_normal((2, batch, kv_heads, length, 4))
    return PlainCase(q, k, v, grad, mask)


def documents(*lengths: int) -> np.ndarray:
    """The number of the document of each position."""
    return np.repeat(np.arange(len(lengths)), lengths)


CASES = {
    "causal, grouped": draw(4, 2, 24, 2, AttentionMask()),
    "causal, 23 tokens": draw(3, 1, 23, 1, AttentionMask()),
    "all see all": draw(4, 2, 16, 2, AttentionMask(causal=False)),
    "documents": draw(4, 2, 24, 1, AttentionMask(documents=documents(7, 1, 11, 5))),
    "padded": draw(4, 2, 24, 3, AttentionMask(lengths=np.array([24, 7, 1]))),
    "several blocks of queries": draw(1, 1, 150, 1, AttentionMask()),
    "two tokens": draw(2, 2, 2, 1, AttentionMask()),
}


def by_definition(case: PlainCase, keep: np.ndarray | float = 1.0,
                  scale: float = 1.0) -> dict[str, np.ndarray]:
    """out, lse (…, 1), dq, dk, dv, with all probabilities at once; `keep` is a dropout mask."""
    q, k, v, grad, _ = case
    group, shrink = q.shape[1] // k.shape[1], q.shape[-1]**-0.5
    k, v = (np.repeat(each, group, axis=1) for each in (k, v))
    scores = np.where(case.seen()[:, None], q @ k.swapaxes(-1, -2) * shrink, -np.inf)
    lse = np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    p = np.where(lse == -np.inf, 0, np.exp(scores - np.where(lse == -np.inf, 0, lse)))
    used = p * keep * scale
    dp = grad @ v.swapaxes(-1, -2) * keep * scale
    ds = p * (dp - np.sum(p * dp, axis=-1, keepdims=True)) * shrink

    def of_shared(d):
        return d.reshape(d.shape[0], -1, group, *d.shape[2:]).sum(axis=2)
    return {"out": used @ v, "lse": lse, "dq": ds @ k,
            "dk": of_shared(ds.swapaxes(-1, -2) @ q), "dv": of_shared(used.swapaxes(-1, -2) @ grad)}
