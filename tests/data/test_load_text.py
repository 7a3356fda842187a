"""A text with its batches: the same on every rank, each rank's rows, microbatches."""

import numpy as np
import pytest

from minipar.data import Batch, TextBatches, load_text, shard_range


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 9)
    return load_text(path)


def test_a_text_has_ids_that_decode_to_it(text):
    assert text.vocab_size == 28 and text.ids.max() == 27
    assert text.decode(text.encode("lazy fox")) == "lazy fox"
    assert text.decode(text.ids).startswith("the quick brown")


def test_docs_are_a_text_by_name():
    docs = load_text("docs")
    assert docs.vocab_size > 60 and len(docs.ids) > 10_000


def test_batches_are_those_of_the_steps(text):
    batches = list(text.batches(batch_size=6, num_steps=3, seed=4, context=8))
    expected = TextBatches(text.ids, 8, 6, 4)
    assert len(batches) == 3
    for step, batch in enumerate(batches):
        for array, other in zip(batch, expected.batch(step)):
            np.testing.assert_array_equal(array, other)


def test_ranks_hold_the_rows_of_one_batch(text):
    (whole,) = text.batches(batch_size=5, num_steps=1, context=8)
    shards = [next(text.batches(batch_size=5, num_steps=1, context=8,
                                rows=lambda n, rank=rank: shard_range(n, rank, 3)))
              for rank in range(3)]
    assert [len(shard.samples) for shard in shards] == [2, 2, 1]
    for arrays in zip(whole, *shards):
        np.testing.assert_array_equal(arrays[0], np.concatenate(arrays[1:]))


@pytest.mark.parametrize("num_microbatches, sizes", [(1, [5]), (2, [3, 2]), (7, [1] * 5 + [0] * 2)])
def test_a_batch_splits_into_microbatches(num_microbatches, sizes):
    batch = Batch(np.arange(10).reshape(5, 2), np.arange(5), np.arange(5) + 40)
    parts = batch.split(num_microbatches)
    assert [len(part.samples) for part in parts] == sizes
    for i, array in enumerate(batch):
        np.testing.assert_array_equal(array, np.concatenate([part[i] for part in parts]))
        assert all(not np.shares_memory(array, part[i]) for part in parts)


def test_no_microbatch_is_refused():
    with pytest.raises(ValueError, match="at least one microbatch, not 0"):
        Batch(np.ones(2), np.ones(2), np.arange(2)).split(0)
