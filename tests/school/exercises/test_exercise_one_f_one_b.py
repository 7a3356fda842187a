"""Exercise one_f_one_b_loop."""

import numpy as np
import pytest

from minipar.autograd import backward
from minipar.comm import Cluster
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, MLP, GPTConfig
from minipar.parallel.pipeline.one_f_one_b import OneFOneB
from minipar.parallel.strategy import Microbatch

WIDTH, WORDS, ROWS = 6, 7, 2
SIZES = [(1, 2), (2, 1), (2, 5), (3, 2), (3, 4), (4, 6)]      # ranks, microbatches


def mlp():
    return MLP([WIDTH] * 9).initialize(0, np.float64)


def tied():
    return GPT(GPTConfig(WORDS, 4, 2, 2, WIDTH)).initialize(0, np.float64)


def batches_of(model, m):
    """Microbatches, of which the second has fewer targets."""
    draw, found = np.random.default_rng(0), []
    for i in range(m):
        rows = ROWS - (i == 1)
        inputs = draw.standard_normal((rows, WIDTH)) if isinstance(model, MLP) \
            else draw.integers(0, WORDS, (rows, 4))
        shape = (rows,) if isinstance(model, MLP) else (rows, 4)
        found.append(Microbatch(inputs, draw.integers(0, WIDTH, shape), np.arange(rows)))
    return found


def alone(make, m):
    """Loss and gradients of one process."""
    model = make()
    batches = batches_of(model, m)
    num_targets = sum(targets.size for _, targets, _ in batches)
    loss = 0.0
    for inputs, targets, _ in batches:
        part = model.loss(inputs, targets, num_targets)
        backward(part)
        loss += part.item()
    return num_targets, loss, {name: p.grad for name, p in model.named_parameters()}


def check(make, p, m):
    num_targets, loss, expected = alone(make, m)

    def body(comm):
        model = make()
        pipeline = OneFOneB(model, comm, WIDTH)
        found = pipeline.run_batch(batches_of(model, m), num_targets)
        assert found == pytest.approx(loss if comm.rank == p - 1 else 0)
        for name, gradient in pipeline.slabs.gradients().items():
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-9, atol=1e-13,
                                       err_msg=name)
    Cluster(p).run(body)


@pytest.mark.parametrize("p, m", SIZES)
def test_loss_and_gradients_are_those_of_one_process(p, m):
    check(mlp, p, m)


@pytest.mark.parametrize("p, m", [(1, 2), (2, 3), (3, 4)])
def test_a_tied_embedding_too(p, m):
    check(tied, p, m)


@pytest.mark.parametrize("p, m", SIZES)
def test_no_more_than_p_minus_s_microbatches_are_in_flight(p, m):
    def peak(comm, m):
        model = mlp()
        pipeline = OneFOneB(model, comm, WIDTH)
        batches = [batches_of(model, 1)[0] for _ in range(m)]
        ledger = Ledger(p for slab in pipeline.slabs for p in slab.parameters)
        with ledger.recording():
            pipeline.run_batch(batches, 10.0)
        return ledger.peak_of["activations"]
    one, all_of_them = (Cluster(p).run(lambda comm, n=n: peak(comm, n))[0] for n in (1, m))
    assert all_of_them == [min(p - s, m) * each for s, each in enumerate(one)]
