"""Numbers in the answers of the lesson on context parallelism, computed again."""

import runpy

import numpy as np
import pytest

from minipar.parallel.context.mask import AttentionMask
from minipar.parallel.context.token_order import positions_of_ranks
from minipar.parallel.cost.context_parallel import ring_elements, ulysses_elements
from tests.lessons.test_answers import ROOT, says


@pytest.mark.parametrize(("scores", "result"), [((0, np.log(3)), 4), ((0, 0), 3)])
def test_16_what_a_part_must_keep(monkeypatch, scores, result):
    """The same o/s, another result; with the log-sum-exp of each part it is right."""
    monkeypatch.syspath_prepend(ROOT / "lessons")
    lesson, one, zero = runpy.run_path(
        str(ROOT / "lessons" / "16_context_parallelism.py")), np.ones((1, 1, 1)), np.zeros(1)
    parts = [lesson["attend"](one, score * one, value * one, zero, zero)
             for score, value in zip(scores, (1, 5))]
    means = [(o / s).item() for _, s, o in parts]
    sums = np.exp([(m + np.log(s)).item() for m, s, _ in parts])
    _, s, o = lesson["merge"](*parts)
    assert means == [1, 5] and (o / s).item() == pytest.approx(result)
    assert sums @ means / sums.sum() == pytest.approx(result)
    says("16", "With scores 0 and ln 3 they must merge to 4, with two equal scores to 3")


def test_16_grouped_queries():
    p = h = 8
    tokens = [4] * p

    def sent(kv_heads):
        """Elements of all ranks in forward, in b·t·d, for heads one number wide."""
        whole = sum(tokens) * h
        return (ring_elements(tokens, 2 * kv_heads)[0].sum() / whole,
                ulysses_elements(tokens, 1, h, kv_heads, 1).sum() / whole)
    says("16", f"the ring sends {sent(1)[0]} b·t·d and Ulysses {sent(1)[1]}",
         f"it would be {sent(8)[0]:.0f} against {sent(8)[1]}")
    assert sent(1)[0] == 2 * (p - 1) / 8 and sent(1)[1] == sent(8)[1] == 4 * (p - 1) / p


def test_16_packed_documents():
    mask = AttentionMask(documents=np.repeat(np.arange(4), [7, 1, 11, 5]))

    def least_and_most(order):
        positions = positions_of_ranks(order, 24, 4)
        work = [sum(int(mask.visible(mine, keys).sum()) for keys in positions)
                for mine in positions]
        return f"{min(work)} to {max(work)}"
    says("16", f"contiguous pieces leave {least_and_most('contiguous')} pairs",
         f"zig-zag ones {least_and_most('zigzag')}, striped ones {least_and_most('striped')}")
