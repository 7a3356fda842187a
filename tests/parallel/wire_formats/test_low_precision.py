"""Compressed sums: PyTorch's numbers, the bound of the error, half the bytes, and one result."""

import numpy as np
import pytest

from minipar.comm.collectives import all_gather
from minipar.number_formats import BFLOAT16, FLOAT16
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Microbatch
from minipar.parallel.wire_formats.low_precision import LowPrecisionWire
from minipar.testing import worlds
from tests.support.cases import Case

# Gradients of two ranks, and what PyTorch 2.13's fp16_compress_hook makes of them.
LOCAL = np.array([[-0.03526725, 0.047675893, -0.17417124, 0.03606678, 0.03571504],
                  [0.004932497, 0.056031495, 0.013149145, -0.090893164, -0.106968254]], np.float32)
PYTORCH = np.array([-0.015174866, 0.051849365, -0.08050537, -0.027404785, -0.03564453], np.float32)


@worlds(2, mpi=(2,))
def test_float16_is_pytorchs_hook(world):
    """PyTorch's divides by the number of ranks; here the loss was divided before."""
    def body(comm):
        flat = LOCAL[comm.rank] / np.float32(2)
        assert np.array_equal(LowPrecisionWire(FLOAT16).all_reduce(comm, flat, out=flat), PYTORCH)
    world.run(body)


@worlds(1, 2, 3, 4, 8, mpi=(3, 4))
@pytest.mark.parametrize("fmt, unit", [(FLOAT16, 2.0**-11), (BFLOAT16, 2.0**-8)],
                         ids=["float16", "bfloat16"])
def test_the_error_is_bounded(world, fmt, unit):
    """A number is rounded at most p times, once by itself: |error| ≤ ((1 + u)ᵖ - 1) Σ |gᵣ|."""
    def body(comm):
        every = np.random.default_rng(0).standard_normal((comm.size, 1000)).astype(np.float32)
        flat = every[comm.rank].copy()
        comm.start_trace()
        result = LowPrecisionWire(fmt).all_reduce(comm, flat, out=flat)
        sent = comm.stop_trace().bytes_sent()
        assert result is flat and sent <= 2 * 1000 * fmt.num_bytes
        exact = every.astype(np.float64).sum(0)
        bound = ((1 + unit)**comm.size - 1) * np.abs(every).sum(0)
        error = np.abs(flat - exact)
        assert (error <= bound).all() and error.max() > bound.max() / 100
        assert np.isfinite(flat).all()
        results = all_gather(comm, flat).reshape(comm.size, -1)
        assert (results == results[0]).all()                # the same bits on every rank
    world.run(body)


@worlds(2, mpi=(2,))
def test_sums_of_float16_overflow_where_those_of_bfloat16_do_not(world):
    def body(comm):
        flat = np.full(3, 40000.0, np.float32)
        narrow, wide = LowPrecisionWire(FLOAT16), LowPrecisionWire(BFLOAT16)
        assert np.isinf(narrow.all_reduce(comm, flat, out=flat.copy())).all()
        assert np.allclose(wide.all_reduce(comm, flat, out=flat.copy()), 80000, rtol=2.0**-7)
    world.run(body)


@worlds(2, mpi=())
def test_gradients_of_a_model(world):
    """As the wire of DistributedDataParallel: near the exact gradients, with half their bytes."""
    def gradients(comm, **options):
        case = Case("gpt tied", mask="full", parts=(8,))
        strategy = DistributedDataParallel(case.build(), comm, **options)
        inputs, targets = case.batch(0)
        mine = list(strategy.rows(8))
        comm.start_trace()
        strategy.forward_backward([Microbatch(inputs[mine], targets[mine], mine)])
        return strategy.slabs[0].grad, comm.stop_trace().bytes_sent()

    def body(comm):
        exact, num_bytes = gradients(comm)
        close, fewer = gradients(comm, wire=LowPrecisionWire(BFLOAT16))
        assert fewer * 4 == num_bytes                       # of float64
        difference = np.linalg.norm(close - exact) / np.linalg.norm(exact)
        assert 1e-5 < difference < 2 * 2.0**-8
    world.run(body)
