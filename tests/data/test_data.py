"""Data: shards put together are the whole, epochs lose nothing, wrong input is named."""

import hashlib

import numpy as np
import pytest

from minipar.data import (
    Batches,
    CharacterVocabulary,
    TextBatches,
    digits,
    documentation_text,
    read_text,
    shard_range,
    synthetic_sequence,
)

SHA256 = "36dcbca9f22e64b15ffb8386daa8b5d560be992df6b21156170b055fc95e054b"


@pytest.mark.parametrize("num_ranks", range(1, 6))
@pytest.mark.parametrize("total", range(14))
def test_shards_follow_array_split(total, num_ranks):
    parts = [list(shard_range(total, rank, num_ranks)) for rank in range(num_ranks)]
    assert parts == [p.tolist() for p in np.array_split(np.arange(total), num_ranks)]


def test_a_rank_outside_is_refused():
    for total, rank, num_ranks in [(5, 3, 3), (5, -1, 3), (-1, 0, 1), (3, 0, 0)]:
        with pytest.raises(ValueError, match="expected a rank in 0"):
            shard_range(total, rank, num_ranks)


# ---- text

def test_the_documentation_is_a_real_text():
    text = documentation_text()
    assert len(text) > 300_000 and "The \"if\" statement" in text
    assert text == documentation_text()
    vocabulary = CharacterVocabulary.from_text(text)
    assert 80 < len(vocabulary) < 400
    ids = vocabulary.encode(text)
    assert ids.shape == (len(text),) and vocabulary.decode(ids) == text


def test_read_text(tmp_path):
    good = tmp_path / "good.txt"
    good.write_text("naïve\nΣ", encoding="utf-8")
    assert read_text(good) == read_text(str(good)) == "naïve\nΣ"


def test_read_text_says_in_one_line_what_is_wrong(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "latin").write_bytes("naïve".encode("latin-1"))
    for name, kind, message in [("missing", FileNotFoundError, "no file .*missing"),
                                ("empty", ValueError, "is empty"), ("", ValueError, "not a file"),
                                ("latin", ValueError, r"not UTF-8 text \(byte 0xef at 2\)")]:
        with pytest.raises(kind, match=message) as caught:
            read_text(tmp_path / name)
        assert "\n" not in str(caught.value) and ":" in str(caught.value)


def test_a_vocabulary_is_sorted_and_reversible():
    vocabulary = CharacterVocabulary.from_text("hello Σ𝔸 wörld")
    assert vocabulary.characters == "".join(sorted(set("hello Σ𝔸 wörld")))
    assert len(vocabulary) == len(vocabulary.characters)
    assert vocabulary.encode("").shape == (0,) and vocabulary.decode([]) == ""
    ids = vocabulary.encode("wolle 𝔸Σ")
    assert ids.dtype == np.int64
    assert ids.tolist() == [vocabulary.characters.index(c) for c in "wolle 𝔸Σ"]
    assert vocabulary.decode(ids) == "wolle 𝔸Σ"
    assert CharacterVocabulary(vocabulary.characters).encode("wo").tolist() == ids[:2].tolist()


@pytest.mark.parametrize("unknown", ["A", "\x00", "z", "Σ", "\U0010ffff"])
def test_an_unknown_character_is_named(unknown):
    vocabulary = CharacterVocabulary.from_text("abcdefgh ")
    with pytest.raises(ValueError) as caught:
        vocabulary.encode("bad " + unknown + "?")
    assert f"character {unknown!r} at position 4 is not among the 9" in str(caught.value)


def test_wrong_ids_and_vocabularies_are_refused():
    for ids in ([3], [-1], [0.5]):
        with pytest.raises(ValueError, match=r"expected integers in 0 … 2"):
            CharacterVocabulary("abc").decode(ids)
    for characters in ("", "ba", "aab"):
        with pytest.raises(ValueError, match="sorted, each once"):
            CharacterVocabulary(characters)


# ---- batches

def test_text_batches_are_windows_and_the_next_tokens():
    batches = TextBatches(np.arange(1000), context=8, batch_size=5, seed=1)
    inputs, targets, samples = batches.batch(3)
    assert inputs.shape == targets.shape == (5, 8) and samples.tolist() == [15, 16, 17, 18, 19]
    assert np.array_equal(targets, inputs + 1)
    assert np.array_equal(inputs - inputs[:, :1], np.tile(np.arange(8), (5, 1)))
    again = TextBatches(np.arange(1000), context=8, batch_size=5, seed=1).batch(3)
    assert all(np.array_equal(a, b) for a, b in zip(again, (inputs, targets, samples)))
    other = TextBatches(np.arange(1000), context=8, batch_size=5, seed=2).batch(3)
    assert not np.array_equal(other[0], inputs)
    assert not np.array_equal(batches.batch(4)[0], inputs)


def test_the_splits_do_not_overlap_and_are_used_to_the_end():
    ids = np.arange(50)
    seen = {split: np.unique([TextBatches(ids, 4, 64, 0, split, 0.8).batch(s)[1] for s in range(9)])
            for split in ("train", "validation")}
    assert seen["train"].tolist() == list(range(1, 40))
    assert seen["validation"].tolist() == list(range(41, 50))


def test_the_shortest_text_that_works_and_the_longest_that_does_not():
    inputs, targets, _ = TextBatches(np.arange(5), 4, 2, 0, fraction=1.0).batch(0)
    assert inputs.tolist() == [[0, 1, 2, 3]] * 2 and targets.tolist() == [[1, 2, 3, 4]] * 2
    with pytest.raises(ValueError, match="train part has 4 of 4 tokens, but context 4 needs at "
                                         "least 5: give a longer text or a smaller context"):
        TextBatches(np.arange(4), 4, 2, 0, fraction=1.0)
    with pytest.raises(ValueError, match="validation part has 10 of 100"):
        TextBatches(np.arange(100), 16, 2, 0, "validation")


def test_wrong_arguments_are_refused():
    ids = np.arange(100)
    for wrong in [{"split": "test"}, {"fraction": 0.0}, {"fraction": 1.5}, {"context": 0},
                  {"batch_size": 0}, {"ids": ids * 0.5}, {"ids": ids[None]}]:
        with pytest.raises(ValueError):
            TextBatches(**{"ids": ids, "context": 4, "batch_size": 2, "seed": 0, **wrong})
    with pytest.raises(ValueError, match="one y for each x"):
        Batches(ids, ids[1:], 4, 0)
    with pytest.raises(ValueError, match="at least one"):
        Batches(ids[:0], ids[:0], 4, 0)
    for batches in (Batches(ids, ids, 4, 0), TextBatches(ids, 4, 4, 0)):
        with pytest.raises(ValueError, match="steps are counted"):
            batches.batch(-1)
        with pytest.raises(ValueError, match="expected a rank"):
            batches.shard(4, 4)


@pytest.mark.parametrize("num_ranks", range(1, 6))
@pytest.mark.parametrize("size", range(1, 14))
def test_shards_of_batches_put_together_are_the_global_batch(size, num_ranks):
    x = np.arange(13 * 2).reshape(13, 2)
    for batches in (TextBatches(np.arange(100), 3, size, 0), Batches(x, x[:, 0], size, 0)):
        for step in range(3):
            whole = batches.batch(step)
            parts = [batches.shard(rank, num_ranks).batch(step) for rank in range(num_ranks)]
            for i, array in enumerate(whole):
                assert all(p[i].shape[1:] == array.shape[1:] for p in parts)
                assert np.array_equal(np.concatenate([p[i] for p in parts]), array)
            lengths = [len(p[0]) for p in parts]
            assert max(lengths) - min(lengths) <= 1


def test_a_shard_of_a_shard_is_a_finer_shard():
    batches = TextBatches(np.arange(100), 3, 10, 0)
    parts = [batches.shard(outer, 2).shard(inner, 3).batch(1)[2].tolist()
             for outer in range(2) for inner in range(3)]
    assert parts == [[10, 11], [12, 13], [14], [15, 16], [17, 18], [19]]


@pytest.mark.parametrize("batch_size", [1, 3, 10, 99])
def test_an_epoch_has_each_sample_exactly_once_in_a_new_order(batch_size):
    y = np.arange(10)
    batches = Batches(y * 2.0, y, batch_size, seed=4)
    assert batches.steps_per_epoch == -(-10 // batch_size)
    epochs = []
    for epoch in range(3):
        steps = range(epoch * batches.steps_per_epoch, (epoch + 1) * batches.steps_per_epoch)
        xs, ys, samples = [np.concatenate(parts) for parts in zip(*map(batches.batch, steps))]
        assert sorted(ys.tolist()) == y.tolist() and np.array_equal(xs, ys * 2.0)
        assert samples.tolist() == list(range(10 * epoch, 10 * (epoch + 1)))
        epochs.append(tuple(ys.tolist()))
    assert len(set(epochs)) == 3


def test_batches_leave_numpys_global_state_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    TextBatches(np.arange(100), 3, 10, 0).batch(0)
    Batches(np.arange(5), np.arange(5), 2, 0).batch(0)
    synthetic_sequence(10, 3, 0.1, 0)
    digits()
    assert np.array_equal(np.random.get_state()[1], before)


# ---- tasks

def test_digits_are_the_published_ones_split_once_and_for_all():
    train_x, train_y, test_x, test_y = digits()
    assert train_x.shape == (1437, 64) and test_x.shape == (360, 64)
    assert train_x.dtype == np.float32 and train_y.dtype == np.int64
    x, y = np.concatenate([train_x, test_x]), np.concatenate([train_y, test_y])
    assert x.min() == 0 and x.max() == 1
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert np.bincount(test_y).min() >= 25
    assert len(np.unique(np.concatenate([x * 16, y[:, None]], axis=1), axis=0)) == 1797
    pixels = (x * 16).astype(np.uint8)
    assert hashlib.sha256(pixels.tobytes() + y.astype(np.uint8).tobytes()).hexdigest() == SHA256


def test_digits_can_be_told_apart():
    train_x, train_y, test_x, test_y = digits()
    distance = ((test_x**2).sum(1)[:, None] - 2 * test_x @ train_x.T + (train_x**2).sum(1))
    assert (train_y[distance.argmin(1)] == test_y).mean() > 0.97


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5, 1.0])
def test_the_known_best_loss_is_what_the_true_probabilities_give(noise):
    v, n = 7, 200_000
    ids, successor, optimal = synthetic_sequence(n, v, noise, seed=5)
    assert ids.shape == (n,) and set(ids.tolist()) == set(range(v))
    assert sorted(successor.tolist()) == list(range(v)) and (successor != np.arange(v)).all()
    follows = ids[1:] == successor[ids[:-1]]
    p = 1 - noise + noise / v
    losses = -np.log(np.where(follows, p, max(noise / v, 1e-9)))
    assert abs(losses.mean() - optimal) <= 5 * losses.std() / np.sqrt(n) + 1e-12
    # no other transition is special: a table of counts finds the same probabilities
    counts = np.zeros((v, v))
    np.add.at(counts, (ids[:-1], ids[1:]), 1)
    expected = np.full((v, v), noise / v)
    expected[np.arange(v), successor] = p
    assert np.abs(counts / counts.sum(1, keepdims=True) - expected).max() < 0.02


def test_the_best_loss_at_its_ends_and_wrong_arguments():
    assert synthetic_sequence(10, 8, 0.0, 0).optimal_loss == 0
    assert synthetic_sequence(10, 8, 1.0, 0).optimal_loss == pytest.approx(np.log(8))
    ids = synthetic_sequence(50, 5, 0.3, 1).ids
    assert np.array_equal(ids, synthetic_sequence(50, 5, 0.3, 1).ids)
    TextBatches(ids, 8, 4, 0).batch(0)
    for wrong in [(10, 8, -0.1), (10, 8, 1.1), (10, 1, 0.5), (0, 8, 0.5)]:
        with pytest.raises(ValueError, match="expected noise in"):
            synthetic_sequence(*wrong, seed=0)
