"""Exercises kth_smallest, n_of_m, cubic_sparsity and remove_units."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.compress.pruning.distributed_topk import kth_smallest, sortable_keys
from minipar.compress.pruning.shrink import remove_units
from minipar.compress.pruning.sparsity_schedule import cubic_sparsity
from minipar.compress.pruning.structured import units_of
from minipar.compress.pruning.two_of_four import n_of_m
from minipar.nn import MLP


def test_kth_smallest_on_one_rank():
    keys = np.random.default_rng(0).integers(0, 1 << 32, 200, np.uint32)
    for k in (1, 2, 77, 200):
        found = kth_smallest(keys, k, 4)
        assert found.key == np.sort(keys)[k - 1], f"k = {k}: {found.key} is another key"
        assert found.num_smaller == k - 1, f"k = {k}: {found.num_smaller} are smaller"


def test_kth_smallest_counts_equals():
    keys = np.array([7, 300, 300, 70000, 300, 9], np.uint32)
    for k, expected in ((1, (7, 0, 1)), (3, (300, 2, 3)), (5, (300, 2, 3)), (6, (70000, 5, 1))):
        found = kth_smallest(keys, k, 4)
        assert tuple(found) == expected, f"k = {k} of {keys}: {found}, not {expected}"


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_kth_smallest_of_all_ranks(num_ranks):
    weights = np.round(np.random.default_rng(1).standard_normal(90), 1).astype(np.float32)
    keys = sortable_keys(np.abs(weights))
    parts = np.split(keys, [0, 60][:num_ranks - 1])         # one rank has none

    def body(comm):
        return [kth_smallest(parts[comm.rank], k, 4, comm) for k in (1, 45, 90)]
    for rank, found in enumerate(Cluster(num_ranks).run(body)[0]):
        for k, one in zip((1, 45, 90), found):
            key = np.sort(keys)[k - 1]
            expected = (key, np.sum(keys < key), np.sum(keys == key))
            assert tuple(one) == expected, f"rank {rank}, k = {k}: {one}, not {expected}"


def test_kth_smallest_sends_counts_not_keys():
    def body(comm):
        keys = np.random.default_rng(comm.rank).integers(0, 1 << 32, 20_000, np.uint32)
        comm.start_trace()
        kth_smallest(keys, 9000, 4, comm)
        return comm.stop_trace().bytes_sent()
    sent = max(Cluster(2).run(body)[0])
    assert 0 < sent <= 4 * 2 * 256 * 8, f"a rank sent {sent} bytes: four rounds of 256 counts do"


def scores(num_in, num_out=5):
    return np.random.default_rng(num_in).random((num_in, num_out))


def test_n_of_m_keeps_n_of_every_m_inputs():
    for n, m in ((2, 4), (1, 4), (4, 8)):
        mask = n_of_m(scores(16), n, m)
        assert mask.shape == (16, 5) and mask.dtype == bool
        counts = mask.reshape(-1, m, 5).sum(1)
        assert np.all(counts == n), f"{n} of {m}: groups of inputs keep {np.unique(counts)}"


def test_n_of_m_keeps_the_largest():
    values = scores(12)
    groups, kept = values.reshape(3, 4, 5), n_of_m(values).reshape(3, 4, 5)
    lost = np.where(kept, -1, groups).max(1)
    left = np.where(kept, groups, 2).min(1)
    assert np.all(lost < left), "a group lost a score that is larger than one it keeps"


def test_n_of_m_of_equal_scores_drops_the_first():
    mask = n_of_m(np.array([[1.0], [1], [1], [1], [5], [2], [2], [2]]))
    assert mask.ravel().tolist() == [False, False, True, True, True, False, False, True]


@pytest.mark.parametrize("num_in, n, m", [(6, 2, 4), (8, 4, 4), (8, 0, 4)])
def test_n_of_m_refuses_what_cannot_be(num_in, n, m):
    with pytest.raises(ValueError):
        n_of_m(scores(num_in), n, m)


def test_cubic_sparsity_has_its_ends():
    for step, expected in ((0, 0.1), (100, 0.1), (150, 0.8), (400, 0.8)):
        found = cubic_sparsity(step, 100, 50, 0.1, 0.8)
        assert found == pytest.approx(expected), f"step {step}: {found}"


def test_cubic_sparsity_is_cubic():
    for step in range(100, 151, 5):
        expected = 0.8 + (0.1 - 0.8) * (1 - (step - 100) / 50) ** 3
        found = cubic_sparsity(step, 100, 50, 0.1, 0.8)
        assert found == pytest.approx(expected), f"step {step}: {found}, not {expected}"


def test_cubic_sparsity_without_length_is_one_shot():
    assert [cubic_sparsity(step, 3, 0, 0.2, 0.9) for step in (2, 3, 4)] == [0.2, 0.9, 0.9]


def mlp_without(gone, activation="tanh"):
    """An MLP whose neurons `gone` of the first hidden layer have no columns, but a bias."""
    model = MLP([5, 6, 4, 3], activation).initialize(0, np.float64)
    for i, p in enumerate(model.parameters()):
        p.data[...] += np.random.default_rng(i).standard_normal(p.shape)
    model[0].weight.data[:, gone] = 0
    return model


GONE = np.array([False, True, False, False, True, False])


@pytest.mark.parametrize("activation", ["tanh", "relu", "gelu"])
def test_remove_units_computes_the_same(activation):
    model, x = mlp_without(GONE, activation), np.random.default_rng(9).standard_normal((7, 5))
    found = remove_units(model.state_dict(), units_of(model)[0], GONE)
    small = MLP([5, 4, 4, 3], activation).initialize(0, np.float64)
    small.load_state_dict(found)
    error = np.max(np.abs(small.logits(x).data - model.logits(x).data))
    assert error < 1e-12, f"with {activation} the outputs are off by {error:.2g}"


def test_remove_units_of_an_optimizer_folds_nothing():
    model = mlp_without(GONE)
    values = model.state_dict()
    found = remove_units(values, units_of(model)[0], GONE, fold=False)
    assert np.array_equal(found["2.bias"], values["2.bias"]), "moments are only cut"
    assert np.array_equal(found["0.weight"], values["0.weight"][:, ~GONE])
    assert np.array_equal(found["2.weight"], values["2.weight"][~GONE])


def test_remove_units_leaves_its_input_alone():
    model = mlp_without(GONE)
    values = model.state_dict()
    before = {name: array.copy() for name, array in values.items()}
    remove_units(values, units_of(model)[0], GONE)
    assert all(np.array_equal(values[name], before[name]) for name in before)
