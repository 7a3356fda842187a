"""Attention over blocks: recorded values, NaN in unused slots, any tile, grouped queries."""

from pathlib import Path

import numpy as np
import pytest

from minipar.inference.cache import SequenceInput, TokenBatch
from minipar.inference.cache.paged_attention import (
    gather_from,
    gathered_attention,
    paged_attention,
)

RECORDED = np.load(Path(__file__).parent / "arrays/paged_attention.npz")


def recorded_inputs() -> list[SequenceInput]:
    return [SequenceInput([0] * int(queries), int(cached - queries), [b for b in table if b >= 0])
            for queries, cached, table in zip(RECORDED["num_queries"], RECORDED["num_cached"],
                                              RECORDED["block_tables"])]


@pytest.mark.parametrize("tile", [1, 4, 8, 12, 256])
def test_recorded_values(tile):
    assert np.isnan(RECORDED["k_cache"]).any()
    gather = gather_from(RECORDED["k_cache"], RECORDED["v_cache"])
    out = paged_attention(RECORDED["q"], gather, 4, TokenBatch(recorded_inputs(), 4), tile)
    np.testing.assert_allclose(out, RECORDED["out"], atol=1e-12, rtol=0)


def test_the_specification_agrees_with_what_was_recorded():
    end = 0
    for each in recorded_inputs():
        first, end = end, end + len(each.tokens)
        k, v = (RECORDED[name][list(each.table)].reshape(-1, 2, 8)[:each.start + len(each.tokens)]
                for name in ("k_cache", "v_cache"))
        out = gathered_attention(RECORDED["q"][first:end], k, v)
        np.testing.assert_allclose(out, RECORDED["out"][first:end], atol=1e-12, rtol=0)


@pytest.mark.filterwarnings("error")
def test_half_precision_masks_without_overflow():
    q, k, v = (RECORDED[name].astype(np.float16) for name in ("q", "k_cache", "v_cache"))
    batch = TokenBatch(recorded_inputs(), 4)
    for tile in (4, 256):               # in tiles of 4 all keys of a shorter sequence are masked
        out = paged_attention(q, gather_from(k, v), 4, batch, tile)
        assert out.dtype == np.float16
        np.testing.assert_allclose(out, RECORDED["out"], atol=5e-3, rtol=0)


def test_rows_are_laid_end_to_end():
    batch = TokenBatch([SequenceInput([5, 9, 2], 0, [7]),
                        SequenceInput([7], 18, [3, 1, 4, 0, 6])], block_size=4)
    assert batch.ids.tolist() == [5, 9, 2, 7] and batch.positions.tolist() == [0, 1, 2, 18]
    assert batch.slots.tolist() == [28, 29, 30, 6 * 4 + 2]
    assert batch.last.tolist() == [2, 3] and batch.longest == 19
