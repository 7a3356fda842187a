"""Every schedule equals one process: losses, gradients, parameters and optimizer states, float64.

Dropout, uneven masks, microbatches of different sizes, weights tied over two ranks, clipping.
"""

import pytest

from minipar.testing import worlds
from tests.support.cases import DEEP, OPTIMIZERS, PIPELINES, Case, check


def parts_of(m: int) -> tuple[int, ...]:
    """Rows of m microbatches, of two sizes."""
    return tuple(2 - i % 2 for i in range(m))


@worlds(1, 3, mpi=(4,), slow=(2, 4))
@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.one_in(2)
def test_equals_one_process(world, name):
    check(world, name, Case("gpt deep tied", "sgd", "uneven", parts_of(5), max_norm=0.5))


@worlds(3, mpi=(2,))
@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.one_in(2)
def test_an_mlp(world, name):
    check(world, name, Case("mlp deep", "adamw", "uneven", parts_of(4)))


@worlds(4, mpi=())
@pytest.mark.parametrize("name", ["naive", "1f1b", "zb_v"])
@pytest.mark.one_in(2)
def test_a_llama(world, name):
    check(world, name, Case("llama deep tied", "sgd", "uneven", parts_of(5), max_norm=0.5))


@worlds(4, mpi=())
@pytest.mark.parametrize("mask", ["one in the whole batch", "none in one microbatch",
                                  "none at all"])
@pytest.mark.parametrize("name", ["naive", "1f1b", "zb_v"])
@pytest.mark.one_in(2)
def test_whatever_the_mask(world, name, mask):
    check(world, name, Case("gpt deep untied", "adamw", mask, parts_of(3)))


@worlds(3, mpi=())
def test_an_empty_microbatch(world):
    check(world, "1f1b", Case("mlp deep", parts=(3, 0, 2)))


@worlds(4, mpi=())
@pytest.mark.parametrize("name", ["naive", "1f1b", "zb_v"])
@pytest.mark.one_in(2)
def test_gradients_add_up_inside_no_sync(world, name):
    """Tied gradients are summed once, after the last of several batches."""
    check(world, name, Case("gpt deep tied", parts=(2, 1, 2)), inside_no_sync=True)


@pytest.mark.slow
@worlds(2, 3, 4, mpi=(4,))
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", DEEP)
@pytest.mark.parametrize("name", PIPELINES)
def test_the_whole_product(world, name, model, optimizer, m):
    check(world, name, Case(model, optimizer, "uneven", parts_of(m), max_norm=0.5))
