"""Quantized messages and strategies: overflows, uneven ranks, no_sync; the matrix has the rest."""

import numpy as np
import pytest

from minipar.mixed_precision import unscale
from minipar.optim import SGD
from minipar.parallel.wire_formats.quantized.quantized_collectives import QuantizedWire
from minipar.testing import worlds
from tests.support.cases import Case
from tests.support.quantized_runs import check_gathers, check_gradients, made, one_batch


@worlds(2, 3, mpi=())
@pytest.mark.one_in(2)
def test_on_few_ranks(world):
    for name in ("ddp", "fsdp"):
        check_gradients(world, name)
    check_gathers(world, "fsdp")


@worlds(3, mpi=(3,))
@pytest.mark.parametrize("name", ["ddp", "fsdp", *(
    pytest.param(name, marks=pytest.mark.slow) for name in ("zero1", "zero2"))])
def test_an_overflow_is_found_and_leaves_nothing_behind(world, name):
    """The scale makes gradients infinite in one batch; the next one is as if that had not been."""
    case = Case("mlp", mask="full", parts=(8,))

    def body(comm):
        after = []
        for scales in ((1.0, 2.0**131, 1.0), (1.0, 1.0)):
            strategy = made(comm, name, case, wire=QuantizedWire())
            optimizer, answers = SGD(strategy.slabs, lr=0.1), []
            for scale in scales:
                optimizer.zero_grad()
                with np.errstate(over="ignore", invalid="ignore"):
                    found = one_batch(strategy, case, 0, scale)
                answers.append(unscale(strategy, scale))
                if answers[-1]:
                    strategy.step(optimizer)
            assert answers == [scale == 1 for scale in scales]
            after.append(found)
        for key, gradient in after[1].items():
            assert np.isfinite(after[0][key]).all()
            np.testing.assert_allclose(after[0][key], gradient, atol=0.02)
    world.run(body)


@worlds(2, mpi=())
def test_of_microbatches_inside_no_sync_the_sum_alone_is_owed(world):
    """One debt for each number of each bucket, whatever the number of microbatches."""
    def body(comm):
        strategy = made(comm, "ddp", Case("mlp", mask="full", parts=(8,)), wire=QuantizedWire())
        one_batch(strategy, Case("mlp", mask="full", parts=(8,)))
        residual = strategy.wire.feedback.residuals
        assert {key.rpartition("/")[0] for key in residual} == {f.name for f in strategy.flats}
        assert sum(debt.size for debt in residual.values()) == strategy.model.num_parameters()
    world.run(body)
