"""Quantization-aware training: the straight-through gradient, the same in every layout."""

import copy

import numpy as np
import pytest

from minipar.autograd import Tensor, no_grad
from minipar.compress import (
    FakeQuantize,
    Granularity,
    IntGrid,
    QuantizedTensor,
    convert,
    freeze,
    prepare_qat,
)
from minipar.compress.quantization.post_training import quantize
from minipar.compress.quantization.qat import fake_quantize
from minipar.nn import GPT, MLP, GPTConfig
from minipar.optim import SGD
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.parallel.tensor.parallelize import parallelize
from minipar.testing import worlds

DRAW = np.random.default_rng(0)
IDS, TARGETS = DRAW.integers(0, 11, (2, 4, 6))
X, LABELS = DRAW.standard_normal((6, 8)), DRAW.integers(0, 4, 6)
STEPS = 3


def gpt():
    return GPT(GPTConfig(11, context=6, num_layers=1, num_heads=2, width=16)).initialize(
        1, np.float64)


def mlp():
    return MLP([8, 12, 4]).initialize(1, np.float64)


def test_the_gradient_is_the_clip_s():
    """As torch.fake_quantize_per_tensor_affine: 1 where the rounded code is one of the grid's."""
    grid, scale, zero = IntGrid(8, "asymmetric"), np.float32(0.05), np.uint8(131)
    x = Tensor(np.array([0.0, 6.2, 6.22, 6.23, -6.55, -6.57, -6.58, 1e4, -1e4]), requires_grad=True)
    y = fake_quantize(x, scale, zero, grid)
    y.backward(np.arange(1.0, 10.0))
    assert x.grad.tolist() == [1, 2, 3, 0, 5, 6, 0, 0, 0]
    np.testing.assert_allclose(y.data, [0, 6.2, 6.2, 6.2, -6.55, -6.55, -6.55, 6.2, -6.55],
                               rtol=1e-6)
    again = fake_quantize(Tensor(y.data), scale, zero, grid)
    assert np.array_equal(again.data, y.data)           # what is on the grid stays


@pytest.mark.parametrize("per", ["tensor", "channel", "group:32"])
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
def test_training_sees_what_quantization_will_make(scheme, per):
    grid, per = IntGrid(4, scheme), Granularity.parse(per)
    model = MLP([40, 12, 4]).initialize(1)
    after = quantize(copy.deepcopy(model), grid, per)
    prepared = prepare_qat(copy.deepcopy(model), grid, per)
    for i in (0, 2):
        assert np.array_equal(prepared[i].weight.data, after[i].weight.data)
        assert issubclass(prepared[i].weight.grad_target.function, FakeQuantize)
    converted = convert(prepared)
    assert np.array_equal(converted[0].quantized.codes(), after[0].quantized.codes())


def train(model, comm=None, strategy="ddp", tensor=False, freeze_after=None, **options):
    """Losses, and parameters by name, after STEPS steps on one rank or all."""
    inputs = (IDS, TARGETS) if isinstance(model, GPT) else (X, LABELS)
    if tensor:
        model = parallelize(model, comm)
    prepare_qat(model, comm=comm, **options)
    if comm is None or tensor:
        slabs, wrapped = model.slabs, None
    else:
        wrapped = make_strategy(strategy, model, comm)
        slabs = wrapped.slabs
    optimizer, losses = SGD(slabs, lr=0.2), []
    for step in range(STEPS):
        optimizer.zero_grad()
        if wrapped is None:
            loss = model.loss(*inputs)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.data))
        else:
            rows = wrapped.rows(len(inputs[0]))
            mine = [a[rows.start:rows.stop] for a in (*inputs, np.arange(len(inputs[0])))]
            losses.append(wrapped.forward_backward([Microbatch(*mine)], 0, step))
            wrapped.step(optimizer)
        if step == freeze_after:
            freeze(model)
    return losses, (wrapped or model).state_dict()


def check(world, make, options, **layout):
    losses, state = train(make(), **options)

    def body(comm):
        found_losses, found = train(make(), comm, **layout, **options)
        np.testing.assert_allclose(found_losses, losses, rtol=1e-9)
        for name in state:
            np.testing.assert_allclose(found[name], state[name], atol=1e-9, err_msg=name)
    world.run(body)


@worlds(1, 3, mpi=())
@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp"])
def test_data_parallel_equals_one_process(world, strategy):
    check(world, gpt, {"grid": IntGrid(4), "freeze_after": 1}, strategy=strategy)


@worlds(2, mpi=(2,))
@pytest.mark.parametrize("make", [gpt, mlp])
@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_tensor_parallel_equals_one_process(world, make, per):
    options = {"grid": IntGrid(4, "asymmetric"), "per": Granularity(per), "freeze_after": 1}
    check(world, make, options, tensor=True)


@worlds(2, mpi=())
@pytest.mark.parametrize("layout", [{"tensor": True}, {"strategy": "ddp"}], ids=["tp", "ddp"])
def test_inputs_are_observed_by_all_ranks_together(world, layout):
    """A moving average of the first batch is that of its extremes, over all ranks."""
    check(world, mlp, {"activations": True, "freeze_after": 0}, **layout)


def test_a_rank_without_rows_still_agrees():
    from minipar.comm import Cluster
    make = lambda: MLP([4, 2, 3]).initialize(1, np.float64)                     # noqa: E731

    def body(comm):
        model = prepare_qat(parallelize(make(), comm), per=Granularity("tensor"))
        with no_grad():
            return model.logits(X[:, :4]).data
    alone = prepare_qat(make(), per=Granularity("tensor")).logits(X[:, :4]).data
    for found in Cluster(3).run(body)[0]:
        np.testing.assert_allclose(found, alone, atol=1e-12)


def test_training_for_four_bits_is_better_than_rounding_to_them():
    from minipar.data import Batches, digits
    data = digits()
    model, batches = MLP([64, 24, 10]).initialize(0), Batches(data.train_x, data.train_y, 64, 0)

    def steps(model, first, last):
        optimizer = SGD(model.slabs, lr=0.1, momentum=0.9)
        for step in range(first, last):
            optimizer.zero_grad()
            model.loss(*batches.batch(step)[:2]).backward()
            optimizer.step()
        return model

    def loss(model):
        with no_grad():
            return float(model.loss(data.test_x, data.test_y).data)
    steps(model, 0, 150)
    rounded = loss(quantize(copy.deepcopy(model), IntGrid(2)))
    trained = steps(prepare_qat(copy.deepcopy(model), IntGrid(2), activations=True), 150, 250)
    freeze(trained)
    with no_grad():
        faked = trained.logits(data.test_x).data
        assert np.abs(convert(trained).logits(data.test_x).data - faked).max() < 1e-4
    assert loss(trained) < 0.7 * rounded


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ValueError, match="float weights was expected"):
        prepare_qat(quantize(mlp()))
    from minipar.comm import Cluster

    def body(comm):
        model = parallelize(MLP([8, 93, 4]).initialize(0), comm)
        with pytest.raises(ValueError, match=r"cut over ranks at \[31, 62\], in the middle"):
            prepare_qat(model, per=Granularity("group", 32))
        prepare_qat(model, per=Granularity("group", 31))
        with pytest.raises(ValueError, match=r"0\.weight is cut over ranks"):
            convert(prepare_qat(parallelize(MLP([8, 48, 4]).initialize(0), comm)))
    Cluster(3).run(body)


def test_a_frozen_scale_clips_what_leaves_it():
    model = prepare_qat(mlp())
    freeze(model)
    weight = model[0]._parameters["weight"]
    before = np.abs(model[0].weight.data).max()
    weight.data[0, 0] = 100
    model.loss(X, LABELS).backward()
    assert np.abs(model[0].weight.data).max() <= before * (1 + 1e-6)
    assert weight.grad[0, 0] == 0 and np.count_nonzero(weight.grad) > 50
    assert isinstance(convert(model)[0].quantized, QuantizedTensor)
