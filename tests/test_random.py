"""Random numbers by name: stable, independent of layout, and no two names alike."""

from contextvars import copy_context

import numpy as np
import pytest

from minipar.nn.step_context import current_step, training_step
from minipar.random import dropout_mask, first_uniform, generator

PINNED = [1626343764, 3213944745, 3352265306]
PINNED_MASK = [[0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 1]]


def test_the_same_name_draws_the_same_numbers_for_ever():
    drawn = generator(0, "h.0.attn.c_attn.weight").integers(0, 2**32, 3)
    assert drawn.tolist() == PINNED
    assert generator(np.int64(0), "h.0.attn.c_attn.weight").integers(0, 2**32, 3).tolist() == PINNED


def test_different_names_draw_different_numbers():
    names = [(), ("a",), ("b",), ("ab",), ("a", "b"), (1,), ("1",), (1, 2), (12,), ("a", ""),
             ("é",), ("e\u0301",)]
    drawn = {generator(seed, *n).bytes(16) for n in names for seed in (0, 1)}
    assert len(drawn) == 2 * len(names)


def test_names_of_another_type_are_refused():
    with pytest.raises(ValueError, match=r"strings or integers, not \(0, 1.5\)"):
        generator(0, 1.5)


def test_numpys_global_state_is_left_alone():
    np.random.seed(7)
    before = np.random.get_state()
    generator(1, "x").standard_normal(5)
    dropout_mask(1, 2, "drop", [0, 5], (3, 4), 0.5)
    after = np.random.get_state()
    assert before[0] == after[0] and before[2:] == after[2:]
    assert np.array_equal(before[1], after[1])


def test_a_mask_is_the_same_for_ever():
    mask = dropout_mask(3, 1, "drop", [2, 5], (6,), 0.5)
    assert mask.astype(int).tolist() == PINNED_MASK


@pytest.mark.parametrize("shape", [(), (1,), (5,), (16,), (7, 3), (4, 5, 6), (3, 0)])
def test_each_sample_has_its_own_mask_whatever_batch_it_is_in(shape):
    whole = dropout_mask(1, 2, "drop", range(9), shape, 0.3)
    assert whole.shape == (9, *shape) and whole.dtype == bool
    for samples in ([4], [8, 0, 3], [2, 3, 4, 7], [5, 5], []):
        part = dropout_mask(1, 2, "drop", samples, shape, 0.3)
        assert part.shape == (len(samples), *shape)
        assert np.array_equal(part, whole[np.array(samples, dtype=int)])


@pytest.mark.parametrize("box", [
    np.s_[0:2,], np.s_[3:7,], np.s_[:, 1:4], np.s_[2:5, 2:3, 4:], np.s_[-3:,], np.s_[4:4,],
    np.s_[::2, :, 1::2], np.s_[::-1,], np.s_[5:2, 1:], np.s_[:, :, :], (), np.s_[6:100,]])
def test_a_box_of_a_mask_equals_that_part_of_the_whole(box):
    samples, shape = [0, 1, 2, 11, 40, 41], (7, 5, 6)
    whole = dropout_mask(5, 0, "drop", samples, shape, 0.4)
    part = dropout_mask(5, 0, "drop", np.array(samples), shape, 0.4, box)
    assert np.array_equal(part, whole[:, *box])


def test_a_mask_depends_on_seed_step_layer_and_sample():
    masks = [dropout_mask(seed, step, layer, [sample], (64,), 0.5).tobytes()
             for seed in (0, 1) for step in (0, 1) for layer in ("a", "b") for sample in (0, 1)]
    assert len(set(masks)) == 16


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_the_rate_is_kept_within_binomial_bounds(rate):
    num_samples, shape = 20, (100, 50)
    mask = dropout_mask(11, 3, "drop", range(num_samples), shape, rate)
    bound = 4 * np.sqrt(rate * (1 - rate) / mask.size) + 2**-17
    assert abs(mask.mean() - (1 - rate)) <= bound
    # no position and no sample is special: each within 5.5 standard deviations
    assert abs(mask.mean(axis=0) - (1 - rate)).max() <= 5.5 * np.sqrt(
        rate * (1 - rate) / num_samples) + 2**-17
    assert abs(mask.mean(axis=(1, 2)) - (1 - rate)).max() <= 5.5 * np.sqrt(
        rate * (1 - rate) / 5000) + 2**-17


def test_a_rate_of_zero_keeps_all_and_one_is_refused():
    assert dropout_mask(0, 0, "drop", [1], (1000,), 0.0).all()
    for rate in (1.0, -0.1, 1.5):
        with pytest.raises(ValueError, match=r"rate is in \[0, 1\)"):
            dropout_mask(0, 0, "drop", [1], (3,), rate)


def test_wrong_samples_and_boxes_are_refused():
    for samples in ([-1], [0.5], [[1, 2]], 3):
        with pytest.raises(ValueError, match="global sample numbers"):
            dropout_mask(0, 0, "drop", samples, (3,), 0.5)
    for box in ((slice(1), slice(1)), (1,)):
        with pytest.raises(ValueError, match="cuts are one slice for each leading axis"):
            dropout_mask(0, 0, "drop", [1], (3,), 0.5, box)


def test_a_training_step_is_seen_inside_only():
    assert current_step() is None
    with training_step(3, 7, range(4, 6)) as outer:
        assert current_step() is outer
        assert (outer.seed, outer.step, outer.samples.tolist()) == (3, 7, [4, 5])
        with pytest.raises(RuntimeError), training_step(3, 7, [5]):
            assert current_step().samples.tolist() == [5]
            raise RuntimeError
        assert current_step() is outer
    assert current_step() is None


def test_greenlets_have_training_steps_of_their_own():
    greenlet = pytest.importorskip("greenlet").greenlet
    seen = []

    def rank(number):
        with training_step(0, 0, [number]):
            greenlet.getcurrent().parent.switch()
            seen.append(current_step().samples.tolist())
    ranks = [greenlet(rank) for _ in range(2)]
    for number, one in enumerate(ranks):
        one.gr_context = copy_context()
        one.switch(number)
    for one in ranks:
        one.switch()
    assert seen == [[0], [1]] and current_step() is None


def test_the_first_uniform_number_is_the_generators():
    for name in range(200):
        assert first_uniform(3, "draw", name) == generator(3, "draw", name).random()
