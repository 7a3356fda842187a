"""Numbers in the answers of the lessons on inference, computed again."""

import itertools

import numpy as np
import pytest

from minipar.inference.sampling.speculative import expected_tokens
from minipar.inference.scheduling import BlockPool, CachedSequence, blocks_for
from tests.lessons.test_answers import says


def test_26_blocks_and_bytes():
    wasted = [size * blocks_for(100, size) - 100 for size in (1, 16, 256)]
    assert wasted == [0, 12, 156]
    token, pool = 2 * 40 * 40 * 128 * 2, 12 * 2**30
    says("26", "7 · 16 − 100 = 12, and 256 − 100 = 156", f"= {token:,} bytes",
         f"{token * 2048 / 1e9:.2f} GB, so {pool // (token * 2048)} fit",
         f"room for {pool // (16 * token) // blocks_for(200, 16)} of them",
         f"{blocks_for(200, 16)} blocks each, of the {pool // (16 * token)} that fit")


@pytest.mark.parametrize("num_answers", [2, 5])
def test_26_copies(num_answers):
    pool = BlockPool(32, 4)
    first = CachedSequence("0", list(range(6)))
    first.allocate(pool, 6)
    first.num_computed = 6
    answers = [first, *(first.fork(pool, str(i)) for i in range(1, num_answers))]
    assert sum(answer.copy_on_write(pool) is not None for answer in answers) == num_answers - 1
    says("26", "s answers make s − 1 copies", f"(24 − 1) div 4 = {(24 - 1) // 4}")


def test_30_orders_of_static_batches():
    answers = (2, 9, 3, 4, 6, 2)
    fewest = min(max(order[:3]) + max(order[3:]) for order in itertools.permutations(answers))
    says("30", f"9 + 3 = {fewest} steps", f"takes only {-(-sum(answers) // 3)}")


def test_30_speculation():
    speed = {drafts: expected_tokens(0.8, drafts) / (1 + drafts / 10) for drafts in range(1, 20)}
    best = max(speed, key=speed.get)
    says("30", f"yields {expected_tokens(0.8, 4):.2f} tokens: {speed[4]:.2f} times",
         f"{expected_tokens(0.8, 8):.2f} tokens cost 1.8 calls: also {speed[8]:.2f} times",
         f"{speed[best]:.2f} times with {best}")


def test_30_chunks():
    def milliseconds(budget):
        room = 600 if budget is None else budget - 4
        return 5 + sum(max(10, (4 + min(room, 600 - i)) / 10) for i in range(0, 600, room))
    assert np.isclose(milliseconds(32), 225)
    says("30", f"{milliseconds(256):.1f} ms in place of {milliseconds(None):.1f}",
         f"{milliseconds(104):.1f} ms with 104", "needs 22 steps and 225 ms")
