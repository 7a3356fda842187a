"""Mixed precision under every strategy: what one process computes in the same precision.

Ranks round their own gradients before they are summed, so a rank's rows are compared with a
microbatch of one process: then every rounding is of the same number, and where float32 sums have
the same order (two ranks; a pipeline), so is every bit.
"""

import re
from functools import partial
from itertools import cycle

import numpy as np
import pytest

from minipar.comm.mesh import DeviceMesh
from minipar.number_formats import BFLOAT16, FLOAT16
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Strategy
from minipar.testing import worlds
from tests.support.cases import ONE_PROCESS
from tests.support.low_precision_runs import ROWS, SLOW_FP16, TIME, alone, same_bits, train

WITHOUT_DP = sorted({*ONE_PROCESS} - {"dp"})


@worlds(2, mpi=(), slow_mpi=(2,))
@pytest.mark.parametrize("precision", SLOW_FP16)
@pytest.mark.parametrize("name", WITHOUT_DP)
@pytest.mark.one_in(2)
def test_data_parallel_is_bitwise_one_process(world, name, precision):
    check_data_parallel(world, name, precision)


@worlds(mpi=(2,))
@pytest.mark.parametrize("name, precision", [*zip(WITHOUT_DP, cycle(["bf16", "fp8"]))])
@pytest.mark.one_in(2)
def test_data_parallel_is_bitwise_one_process_on_real_ranks(world, name, precision):
    check_data_parallel(world, name, precision)


def check_data_parallel(world, name, precision):
    """Each rank's rows are a microbatch of one process."""
    for model in ("tied", "mlp"):
        expected = alone(model, precision, parts=2)
        world.run(lambda comm, model=model, expected=expected: same_bits(
            train(comm, model, precision, partial(make_strategy, name)), expected))


@worlds(4, mpi=(), slow_mpi=(4,))
@pytest.mark.parametrize("name", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_on_more_ranks_only_the_order_of_sums_differs(world, name):
    """Of p float32 numbers: an error of at most p · 2⁻²⁴ of the sum of their sizes."""
    expected = alone("gpt", "bf16", parts=4)

    def body(comm):
        found = train(comm, "gpt", "bf16", partial(make_strategy, name))
        for key, value in found.items():
            if key.startswith("gradient 0"):
                size = comm.size * 2 * np.abs(expected[key]).max()      # p terms of about this size
                assert np.abs(value - expected[key]).max() <= comm.size * 2.0**-24 * size, key
    world.run(body)


def on_pipeline(schedule):
    return lambda model, comm, **options: Strategy(
        model, DeviceMesh(comm, pp=comm.size), schedule=schedule, **options)


@worlds(3, mpi=(3,), slow=(2,))
@pytest.mark.parametrize("precision", SLOW_FP16)
@pytest.mark.parametrize("schedule", [pytest.param("1f1b", marks=pytest.mark.slow), "zb_h1"])
@pytest.mark.one_in(2)
def test_a_pipeline_is_bitwise_one_process_and_sends_half_the_bytes(world, schedule, precision):
    """Activations between stages are rounded already: 2 bytes lose nothing."""
    expected = alone("gpt", precision, parts=4)
    wire = FLOAT16 if precision == "fp16" else BFLOAT16

    def body(comm):
        sent = []
        for fmt in (None, wire):
            comm.start_trace()
            same_bits(train(comm, "gpt", precision, on_pipeline(schedule), 4,
                            activation_format=fmt), expected)
            sent.append(sum(m.num_bytes for m in comm.stop_trace().select(comm.rank)
                            if re.fullmatch(r"\d+[FBI]\d+", m.label)))
        neighbours = (comm.rank > 0) + (comm.rank < comm.size - 1)
        numbers = 2 * ROWS * TIME * 16 * neighbours         # in two steps
        assert sent == [4 * numbers, 2 * numbers]
    world.run(body)
