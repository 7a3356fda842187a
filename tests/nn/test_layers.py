"""Layers, and dropout that does not depend on which rank holds a sample."""

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.backend.shape_array import ShapeArray
from minipar.nn import GPT, Dropout, Embedding, GPTConfig, LayerNorm, Linear, Sequential
from minipar.nn.step_context import training_step

CONFIG = GPTConfig(11, context=6, num_layers=2, num_heads=2, width=8, dropout=0.25)
IDS = np.random.default_rng(0).integers(0, 11, (6, 5))


def test_linear_embedding_and_layer_norm():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 4))
    linear, plain = (Linear(4, 5, bias=b).initialize(1, np.float64) for b in (True, False))
    linear.bias.data[...] = rng.standard_normal(5)
    np.testing.assert_allclose(linear(Tensor(x)).data, x @ linear.weight.data + linear.bias.data)
    np.testing.assert_allclose(plain(Tensor(x)).data, x @ linear.weight.data)
    assert abs(Linear(400, 50).initialize().weight.data.std() - 0.05) < 1e-3    # √(1 / fan-in)
    table = Embedding(7, 3).initialize(0, np.float64)
    np.testing.assert_array_equal(table(IDS[:, :2] % 7).data, table.weight.data[IDS[:, :2] % 7])
    norm = LayerNorm(4, epsilon=0).initialize(0, np.float64)
    y = norm(Tensor(x)).data
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-12)
    np.testing.assert_allclose(y.var(-1), 1, rtol=1e-12)


@pytest.fixture
def drop():
    return Sequential(Dropout(0.25), Dropout(0.25)).initialize()[0]


def ones(*shape):
    return Tensor(np.ones(shape))


def test_dropout_does_nothing_outside_a_training_step_or_at_rate_0(drop):
    x = ones(2, 3)
    assert drop(x) is x
    with training_step(0, 0, [0, 1]):
        assert Dropout(0.0)(x) is x
        assert drop(x) is not x
    assert drop(x) is x


def test_dropout_keeps_the_mean(drop):
    with training_step(0, 0, range(100)):
        y = drop(ones(100, 1000)).data
    assert set(np.unique(y)) == {0, 1 / 0.75}
    assert abs(y.mean() - 1) < 0.01 and abs(y.var() - 1 / 3) < 0.01


def test_a_mask_follows_from_seed_step_layer_and_sample(drop):
    def draw(layer=drop, seed=0, step=0, samples=(4, 5)):
        with training_step(seed, step, samples):
            return layer(ones(len(samples), 50)).data
    other = Sequential(Dropout(0.25), Dropout(0.25)).initialize()
    np.testing.assert_array_equal(draw(), draw())
    np.testing.assert_array_equal(draw(), draw(other[0]))
    for change in (draw(other[1]), draw(seed=1), draw(step=1), draw(samples=(5, 6))):
        assert (change != draw()).any()
    np.testing.assert_array_equal(draw(samples=(5, 6))[0], draw()[1])


def test_a_shard_of_the_batch_draws_the_rows_of_the_whole(drop):
    with training_step(3, 7, range(10, 16)):
        whole = drop(ones(6, 4, 5)).data
    for rows in (slice(0, 2), slice(2, 6), [5, 0, 3]):
        with training_step(3, 7, np.arange(10, 16)[rows]):
            part = drop(ones(len(whole[rows]), 4, 5)).data
        np.testing.assert_array_equal(part, whole[rows])


def test_the_wrong_number_of_samples_teaches(drop):
    with training_step(0, 0, [0, 1, 2]), pytest.raises(
            ValueError, match="names 3 samples, but the batch has 2: give it the samples of this"):
        drop(ones(2, 3))


@pytest.mark.parametrize("rate", [1.0, -0.1, 2])
def test_a_rate_is_below_1(rate):
    with pytest.raises(ValueError, match=r"a dropout rate is in \[0, 1\)"):
        Dropout(rate)


def test_a_shape_only_array_gets_a_mask_of_its_kind(drop):
    with training_step(0, 0, [0]):
        keep = drop.mask(ShapeArray((1, 3), np.float32), (96, 20480, 20480))
        assert isinstance(keep, ShapeArray) and keep.dtype == bool
        assert keep.shape == (1, 96, 20480, 20480)
        with pytest.raises(ValueError, match="names 1 samples"):
            drop.mask(ShapeArray((2, 3), np.float32), (4,))


def test_losses_and_gradients_of_shards_add_up_to_those_of_the_batch_with_dropout():
    def run(parts):
        model, loss = GPT(CONFIG).initialize(0, np.float64), 0
        for rows in parts:
            with training_step(1, 2, rows):
                part = model.loss(IDS[rows], IDS[rows], loss_divisor=IDS.size)
                part.backward()
            loss += part.item()
        return loss, model.slabs[0].grad

    loss, grad = run([np.arange(6)])
    for parts in ([np.arange(3), np.arange(3, 6)], [[4, 1], [0], [2, 3, 5]]):
        shared_loss, shared_grad = run([np.array(p) for p in parts])
        assert abs(shared_loss - loss) < 1e-12
        np.testing.assert_allclose(shared_grad, grad, atol=1e-13)
    model = GPT(CONFIG).initialize(0, np.float64)
    assert abs(model.loss(IDS, IDS).item() - loss) > 1e-6       # and it did drop something
