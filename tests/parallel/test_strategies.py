"""Every strategy equals one process: losses, gradients, parameters and optimizer states, float64.

`train` (cases.py) is the one body; here a selection of the product runs in seconds, the whole
product under `slow`, and both on simulated and on real ranks.
"""

from itertools import cycle

import numpy as np
import pytest

from minipar.autograd import no_grad
from minipar.optim import SGD
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from tests.support.cases import MASKS, MODELS, OPTIMIZERS, STRATEGIES, Case, check

PARTS = {1: (10,), 3: (4, 3, 3)}


@worlds(1, 3, mpi=(3,), slow=(2, 4), slow_mpi=(2, 4))           # 4 ranks: test_matrix.py
@pytest.mark.parametrize("name", [*STRATEGIES, "graph"])
@pytest.mark.one_in(2)
def test_equals_one_process(world, name):
    """Tied weights, dropout, momentum, clipping and three uneven microbatches at once.

    "graph" is the specification of data parallelism, `copy_to` on every use of a weight.
    """
    check(world, name, Case("gpt dropout", "sgd", "uneven", (4, 3, 3), max_norm=0.5))


@worlds(3, mpi=())
@pytest.mark.parametrize("model", sorted({*MODELS} - {"gpt dropout"}))
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.one_in(2)
def test_whatever_the_model(world, name, model):
    check(world, name, Case(model, "adamw"))


RARE_MASKS = sorted({*MASKS} - {"full", "uneven"})


@worlds(4, mpi=(), slow_mpi=(4,))
@pytest.mark.parametrize("mask", RARE_MASKS)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.one_in(2)
def test_whatever_the_mask(world, name, mask):
    check(world, name, Case("mlp", "sgd", mask, (4, 3, 3)))


@worlds(mpi=(4,))
@pytest.mark.parametrize("name, mask", [*zip(STRATEGIES, cycle(RARE_MASKS))])
@pytest.mark.one_in(2)
def test_each_strategy_with_one_mask_on_real_ranks(world, name, mask):
    check(world, name, Case("mlp", "sgd", mask, (4, 3, 3)))


@worlds(8, mpi=())
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.one_in(2)
def test_fewer_rows_than_ranks(world, name):
    check(world, name, Case("mlp", "adamw", "uneven", (3,)))


@worlds(2, 3, mpi=())
@pytest.mark.parametrize("parts", [(16,) * 4, (21, 21, 21, 1)], ids=["4x16", "3x21+1"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_microbatches_are_the_one_big_batch(world, name, parts):
    check(world, name, Case("mlp dropout", "sgd", "none in one microbatch", parts))


@worlds(2, mpi=(2,))
@pytest.mark.parametrize("name", sorted({*STRATEGIES} - {"dp"}))
@pytest.mark.one_in(2)
def test_an_evaluation_sees_the_newest_parameters(world, name):
    """Before a step and after it; the first weights that are used are also the last (tied)."""
    inputs, targets = Case().batch(0)

    def body(comm):
        strategy = STRATEGIES[name](Case().build(), comm)

        def evaluate(model) -> float:
            with no_grad():
                return model.loss(inputs, targets).item()
        mine = list(strategy.rows(len(inputs)))
        strategy.forward_backward([Microbatch(inputs[mine], targets[mine], np.array(mine))])
        before = evaluate(strategy.model)
        strategy.step(SGD(strategy.slabs, lr=0.3))
        plain = Case().build()
        plain.load_state_dict(strategy.state_dict())
        assert before != evaluate(plain) == pytest.approx(evaluate(strategy.model), rel=1e-12)
    world.run(body)


@pytest.mark.slow
@worlds(2, 3, 8, mpi=(4,))
@pytest.mark.parametrize("k", PARTS)
@pytest.mark.parametrize("model, optimizer", [
    *zip(sorted({*MODELS} - {"gpt one block", "mlp dropout"}), cycle(OPTIMIZERS))])
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_whole_product(world, name, model, optimizer, k):
    for mask in sorted({*MASKS} - {"full", "none at all"}):
        check(world, name, Case(model, optimizer, mask, PARTS[k]))
    check(world, name, Case(model, optimizer, "uneven", (3,)))
