"""What an operation did not choose gets the gradient 0, whatever gradient comes down."""

import numpy as np
import pytest

import minipar.autograd as ag
from minipar.autograd import Tensor
from minipar.backend import keep_where
from minipar.comm import Cluster
from minipar.compress import IntGrid
from minipar.compress.distillation.feature_loss import distance
from minipar.compress.distillation.soft_targets import soft_cross_entropy
from minipar.compress.pruning.masks import ApplyMask
from minipar.compress.quantization.qat import fake_quantize
from minipar.gspmd.execution.local_call import MaxOverRanks
from minipar.parallel.tensor.vocabulary import PartialEmbedding, vocabulary_cross_entropy

MASK = np.array([[True, False, True], [False, False, True]])
X = np.array([[1.0, -2.0, 3.0], [0.0, -5.0, 6.0]])
# name: (function of x (2, 3), the elements of x that it chooses)
CHOICES = {
    "where": (lambda x: ag.where(MASK, x, 0.0), MASK),
    "where, else": (lambda x: ag.where(MASK, 0.0, x), ~MASK),
    "where of a row": (lambda x: ag.where(MASK[1], x, 0.0), MASK[1] & (X == X)),
    "relu": (ag.relu, X > 0),
    "max": (lambda x: x.max(axis=1), X.max(axis=1, keepdims=True) == X),
    "max, kept": (lambda x: x.max(axis=0, keepdims=True), X.max(axis=0) == X),
    "max of all": (lambda x: x.max(), X == 6),
    "dropout": (lambda x: ag.dropout(x, MASK, 0.5), MASK),
    "pruning mask": (lambda x: ApplyMask.apply(x, MASK), MASK),
    "clipped to a grid": (lambda x: fake_quantize(x, np.array([0.25]), np.array([0.0]),
                                                  IntGrid(4)), np.abs(X) < 2),
    "indexed": (lambda x: x[MASK], MASK),
    "a slice": (lambda x: x[:, 1:], np.array([[False, True, True]] * 2)),
    "power 0": (lambda x: x**0, X != X),
    "embedding": (lambda x: ag.embedding(x, np.array([1, 1])), np.array([[0] * 3, [1] * 3]) > 0),
    "tokens of other ranks": (lambda x: PartialEmbedding.apply(
        x, np.array([0, 3, 4]), start=3, vocab_size=5), np.array([[1] * 3, [1] * 3]) > 0),
}


@pytest.mark.parametrize("down", [np.inf, -np.inf, np.nan, 2.0])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble])
@pytest.mark.parametrize("name", CHOICES)
def test_only_what_is_chosen_gets_a_gradient(name, dtype, down):
    function, chosen = CHOICES[name]
    x = Tensor(X.astype(dtype), requires_grad=True)
    y = function(x)
    with np.errstate(invalid="ignore"):
        y.backward(np.full(y.shape, down, dtype))
    assert x.grad.dtype == dtype
    assert (x.grad[~chosen] == 0).all() and (x.grad[chosen] != 0).all()
    assert np.isfinite(down) or not np.isfinite(x.grad[chosen]).any()


@pytest.mark.parametrize("name", ["where", "dropout", "pruning mask"])
def test_what_is_masked_may_be_infinite(name):
    function, chosen = CHOICES[name]
    y = function(Tensor(np.where(chosen, X, np.inf))).data
    np.testing.assert_array_equal(y, np.where(chosen, function(Tensor(X)).data, 0))


def test_a_nan_is_the_maximum_and_gets_the_gradient():
    x = Tensor(np.array([[1.0, np.nan, 5.0, np.nan], [1.0, 2.0, 4.0, 4.0]]), requires_grad=True)
    x.max(axis=1).backward(np.array([2.0, 3.0]))
    np.testing.assert_array_equal(x.grad, [[0, 1, 0, 1], [0, 0, 1.5, 1.5]])


def test_more_equal_maxima_than_float16_can_count():
    x = Tensor(np.ones(70_000, np.float16), requires_grad=True)
    x.max().backward()
    np.testing.assert_array_equal(x.grad, np.full(70_000, 1 / 70_000).astype(np.float16))


TARGETS, COUNTS = np.array([2, -100]), np.array([True, False])
LOSSES = {
    "cross-entropy": lambda x: ag.cross_entropy(x, TARGETS),
    "soft targets": lambda x: soft_cross_entropy(x, X[::-1], TARGETS, 2.0),
    "squared": lambda x: distance(x, X + 1, COUNTS, 1.0, "squared"),
    "cosine": lambda x: distance(x, X[::-1] - 1, COUNTS, 1.0, "cosine")}


@pytest.mark.parametrize("down", [np.inf, np.nan])
@pytest.mark.parametrize("name", LOSSES)
def test_a_row_that_a_loss_ignores_gets_0(name, down):
    x = Tensor(X.copy(), requires_grad=True)
    with np.errstate(invalid="ignore"):
        LOSSES[name](x).backward(np.array(down))
    assert not np.isfinite(x.grad[0]).any() and (x.grad[1] == 0).all()


def test_ignored_rows_and_padding_of_a_cut_vocabulary_get_0():
    def body(comm):
        logits = Tensor(np.arange(4.0).reshape(2, 2), requires_grad=True)
        with np.errstate(invalid="ignore"):
            vocabulary_cross_entropy(logits, np.array([1, -100]), comm, 4, num_classes=3).backward(
                np.array(np.inf))
        return logits.grad
    first, second = Cluster(2).run(body)[0]
    assert np.isinf(first[0]).all() and np.isinf(second[0, 0]) and second[0, 1] == 0
    assert (first[1] == 0).all() and (second[1] == 0).all()


def test_a_maximum_over_ranks_chooses_alike():
    def body(comm):
        x = Tensor(np.array([[1.0, 7.0], [5.0, np.nan]])[comm.rank:comm.rank + 1],
                   requires_grad=True)
        MaxOverRanks.apply(x, comm=comm, axis=0, keepdims=False).backward(np.array([np.inf, 3.0]))
        return x.grad.tolist()
    assert Cluster(2).run(body)[0] == [[[0.0, 0.0]], [[np.inf, 3.0]]]


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 1), (2, 3)), ((3,), (2, 3)),
                                    ((2, 3), (2, 1)), ((), (4,)), ((4,), ()), ((0, 3), (0, 3))])
def test_keep_where_is_numpys_where(shapes):
    rng = np.random.default_rng(0)
    mask, x = rng.random(shapes[0]) < 0.5, rng.standard_normal(shapes[1])
    x = np.where(rng.random(shapes[1]) < 0.3, np.nan, x)
    for each in (x, x.T.copy().T, np.broadcast_to(x, x.shape)):
        found = keep_where(np.asarray(mask), each)
        np.testing.assert_array_equal(found, np.where(mask, each, 0))
        assert found.dtype == x.dtype
