"""The vocabulary cut over the ranks: embedding and cross-entropy equal those of one process."""

import numpy as np
import pytest

from minipar import autograd as ag
from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.nn import Embedding
from minipar.parallel.tensor.layers import TensorSplit
from minipar.parallel.tensor.vocabulary import split_vocabulary, vocabulary_cross_entropy
from minipar.testing import worlds

ROWS = (3, 5)


def draw(classes, scale=1.0):
    rng = np.random.default_rng(classes)
    return rng.standard_normal((*ROWS, classes)) * scale, rng.integers(0, classes, ROWS)


def loss_and_gradient(loss_of, logits):
    x = Tensor(logits, requires_grad=True)
    loss = loss_of(x)
    (loss * 2.0).backward()
    return loss.data, x.grad


def mine(comm, array, total):
    start, stop = chunk_bounds(total, comm.size)[comm.rank]
    return array[..., start:stop].copy()


def check(world, logits, targets, valid=None, **options):
    total = logits.shape[-1]
    loss, gradient = loss_and_gradient(
        lambda x: ag.cross_entropy(x, targets, **options), logits[..., :valid])

    def body(comm):
        ours, own = loss_and_gradient(
            lambda x: vocabulary_cross_entropy(x, targets, comm, total, num_classes=valid,
                                               **options), mine(comm, logits, total))
        np.testing.assert_allclose(ours, loss, rtol=1e-12)
        padded = np.zeros(logits.shape)
        padded[..., :valid] = gradient
        np.testing.assert_allclose(own, mine(comm, padded, total), rtol=1e-10, atol=1e-15)
    world.run(body)


@worlds(1, 2, 3, 4, mpi=(4,))
@pytest.mark.parametrize("classes", [4, 11, 12])
def test_cross_entropy_equals_one_process(world, classes):
    check(world, *draw(classes))


@worlds(1, 3, mpi=())
def test_words_that_cannot_come_may_have_minus_infinity(world):
    logits, targets = draw(11)
    logits[..., [0, 4, 8]] = -np.inf            # the first of some ranks' tokens among them
    check(world, logits, np.where(targets % 4, targets, 1))


@worlds(2, 4, mpi=())
def test_logits_times_a_thousand(world):
    logits, targets = draw(11, 1000.0)
    check(world, logits, targets)
    check(world, logits + 1e6, targets)         # no exponential of it fits into a float
    check(world, -np.abs(logits) - 1e6, targets)


@worlds(1, 2, 3, mpi=(2,))
def test_ignored_targets_may_be_anywhere_and_their_logits_anything(world):
    logits, targets = draw(11)
    targets[0], targets[2, 3] = -100, -100
    check(world, logits, targets)
    check(world, logits, np.where(targets < 0, 99, targets), ignore_index=99, loss_divisor=7.0)
    check(world, logits, np.full(ROWS, -100))

    def body(comm):
        wild = logits.copy()
        wild[targets < 0] = np.nan
        found = [loss_and_gradient(lambda x: vocabulary_cross_entropy(x, targets, comm, 11),
                                   mine(comm, values, 11)) for values in (wild, logits)]
        for a, b in zip(*found):
            np.testing.assert_array_equal(a, b)
            assert np.isfinite(a).all()
    world.run(body)


@worlds(1, 2, 4, mpi=(4,))
@pytest.mark.parametrize("classes", [11, 6, 5, 1])      # of 16: some ranks have only padding
@pytest.mark.parametrize("filling", [0.0, 1e9, np.nan])
def test_a_padded_vocabulary(world, classes, filling):
    logits, targets = draw(classes)
    padded = np.full((*ROWS, 16), filling)
    padded[..., :classes] = logits
    check(world, padded, targets, valid=classes)


def test_three_all_reduces_of_a_number_a_token():
    logits, targets = draw(12)
    cluster = Cluster(4, trace=True)
    cluster.run(lambda comm: loss_and_gradient(
        lambda x: vocabulary_cross_entropy(x, targets, comm, 12), mine(comm, logits, 12)))
    assert cluster.trace.num_sent() == cluster.trace.num_sent(label="all_reduce") == 3 * 6 * 4
    assert cluster.trace.bytes_sent() == 3 * 2 * 3 * 8 * targets.size


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_stays(dtype):
    logits, targets = draw(11)

    def body(comm):
        loss, gradient = loss_and_gradient(
            lambda x: vocabulary_cross_entropy(x, targets, comm, 11),
            mine(comm, logits.astype(dtype), 11))
        assert loss.dtype == gradient.dtype == dtype
    Cluster(2).run(body)


@worlds(1, 2, 3, 4, mpi=(2,))
def test_the_embedding_equals_one_process(world):
    ids = np.random.default_rng(1).integers(0, 11, (2, 7))
    g = np.random.default_rng(2).standard_normal((2, 7, 3))
    whole = Embedding(11, 3).initialize(0, np.float64)
    y = whole(ids)
    y.backward(g)

    def body(comm):
        table = split_vocabulary(Embedding(11, 3), TensorSplit(comm))
        table.initialize(0, np.float64)
        ours = table(ids)
        np.testing.assert_array_equal(ours.data, y.data)
        ours.backward(g)
        start, stop = chunk_bounds(11, comm.size)[comm.rank]
        np.testing.assert_allclose(table.weight.grad, whole.weight.grad[start:stop], rtol=1e-13)
        with pytest.raises(ValueError, match="0 … 11 are not all in 0 … 10"):
            table(np.array([[0, 11]]))
    world.run(body)


@pytest.mark.parametrize("spoil, message", [
    (lambda logits, targets: (logits[..., :3], targets), "have 3 columns, its piece is . … "),
    (lambda logits, targets: (logits, targets[0]), "one class number for each row"),
    (lambda logits, targets: (logits, targets + 11), "are not all in 0 … 10")])
def test_what_does_not_fit_is_refused(spoil, message):
    def body(comm):
        logits, targets = spoil(mine(comm, draw(11)[0], 11), draw(11)[1])
        vocabulary_cross_entropy(Tensor(logits), targets, comm, 11)
    with pytest.raises(ValueError, match=message):
        Cluster(2).run(body)
