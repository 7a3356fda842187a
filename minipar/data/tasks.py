"""Two tasks: real handwritten digits, and a made-up language whose best loss is known."""

from importlib import resources
from typing import NamedTuple

import numpy as np

from ..random import generator

NUM_TRAIN_DIGITS = 1437     # of 1797; the other 360 are the test set


class Digits(NamedTuple):
    """Images (n, 64) float32 in 0 … 1, rows of 8 × 8 pixels, and the digits (n,) they show."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def digits() -> Digits:
    """1,437 handwritten digits to train on and 360 to test on (Alpaydin & Kaynak 1998).

    The split is a fixed permutation; `data/files/README.md` says where the images are from.
    """
    file = resources.files("minipar") / "data" / "files" / "digits.npz"
    with file.open("rb") as stream, np.load(stream) as stored:
        x = stored["images"].reshape(-1, 64) / np.float32(16)
        y = stored["labels"].astype(np.int64)
    order = generator(0, "digits").permutation(len(y))
    train, test = order[:NUM_TRAIN_DIGITS], order[NUM_TRAIN_DIGITS:]
    return Digits(x[train], y[train], x[test], y[test])


class SyntheticSequence(NamedTuple):
    """`ids` (n,) int64, `successor` (V,): the likeliest token after each, and `optimal_loss`."""

    ids: np.ndarray
    successor: np.ndarray
    optimal_loss: float


def synthetic_sequence(length: int, vocab_size: int, noise: float,
                       seed: int) -> SyntheticSequence:
    """A Markov chain whose best possible loss is known.

    With probability `noise` = q the next token is any of the V tokens alike.  Otherwise it is
    successor[token]; the successors form one random cycle through all V tokens.  So the successor
    has the probability p = 1 - q + q/V, and each other token q/V.  Knowing more of the past does
    not help.  The smallest expected cross-entropy, in nats per token, is the entropy of that
    distribution:

        optimal_loss = -p ln p - (V - 1) (q/V) ln(q/V)          0 for q = 0, ln V for q = 1.

    Raises ValueError for noise outside [0, 1], fewer than 2 tokens or no length.
    """
    if not 0 <= noise <= 1 or vocab_size < 2 or length < 1:
        raise ValueError("expected noise in [0, 1], vocab_size >= 2 and length >= 1, not "
                         f"{noise}, {vocab_size} and {length}")
    draw = generator(seed, "synthetic sequence")
    cycle = draw.permutation(vocab_size)
    jumps = draw.random(length) < noise
    jumps[0] = True
    # Positions in the cycle: since the last jump, which went anywhere, one step per token.
    places, now = draw.integers(0, vocab_size, length), np.arange(length)
    last_jump = np.maximum.accumulate(np.where(jumps, now, 0))
    ids = cycle[(places[last_jump] + now - last_jump) % vocab_size]
    successor = np.empty_like(cycle)
    successor[cycle] = np.roll(cycle, -1)
    other = noise / vocab_size
    chances = np.array([1 - noise + other] + [other] * (vocab_size - 1))
    chances = chances[chances > 0]
    return SyntheticSequence(ids, successor, float(np.sum(chances * np.log(1 / chances))))
