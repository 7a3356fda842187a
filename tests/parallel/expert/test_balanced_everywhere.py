"""Every strategy counts the loads of experts, and moves the biases of routers, as one process."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.nn.step_context import training_step
from minipar.parallel.data.ddp_by_autograd import data_parallel
from minipar.parallel.pipeline.one_f_one_b import OneFOneB
from minipar.testing import worlds
from tests.support.cases import ALL, CONTEXT_PARALLEL
from tests.support.expert_runs import MODELS, batch, check
from tests.support.sweeps import every

TABLE = {**ALL, **CONTEXT_PARALLEL, "1f1b, specified": lambda model, comm: OneFOneB(model, comm, 8)}
# do not fit two heads, six tokens, or a mesh without tp: tests/parallel has their refusals
UNFIT = ("alone", "Ulysses", "cp 2 × tp 2 sequence",
         *(name for name in TABLE if name.endswith("sequence") and "tp" not in name))


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("name", every(8, [name for name in TABLE if name not in UNFIT]))
@pytest.mark.one_in(4)
def test_biases_are_those_of_one_process_after_several_steps(world, name):
    check(world, TABLE[name], "bias", parts=2, name=name, steps=3)


@worlds(3, mpi=(3,))
@pytest.mark.parametrize("name", ["dp", "naive", "1f1b, specified"])
@pytest.mark.parametrize("model", ["deep", "dropped", "batch"])
@pytest.mark.one_in(2)
def test_losses_and_capacities_too(world, name, model):
    check(world, TABLE[name], model, "adamw", name=name)


def test_a_bias_without_shares_is_refused():
    """Nobody could balance: the choices would not be counted."""
    def body(comm):
        model = data_parallel(MODELS["bias"]().initialize(0, np.float64), comm)
        with training_step(0, 0, range(2)):
            model.loss(*(array[:2] for array in batch(0)))
    with pytest.raises(ValueError, match=r"their shares, or set .* bias_rate=0"):
        Cluster(2).run(body)
