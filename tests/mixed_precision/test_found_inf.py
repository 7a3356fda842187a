"""An overflow in the piece of one rank, along any axis: all skip the step, or none does."""

import numpy as np
import pytest

from minipar.comm.mesh import DeviceMesh
from minipar.mixed_precision import FP16, LossScaler, set_precision, unscale
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW
from minipar.parallel.compare_ranks import ranks_that_differ
from minipar.parallel.registry import STRATEGIES, make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds

CONFIG = GPTConfig(11, context=4, num_layers=4, num_heads=2, width=8)
MESHES = {"pp": ({"pp": 4}, "ddp"), "pp × dp": ({"pp": 2, "dp": 2}, "ddp"),
          "pp × tp": ({"pp": 2, "tp": 2}, "ddp"), "dp × tp": ({"dp": 2, "tp": 2}, "ddp"),
          "dp × tp zero1": ({"dp": 2, "tp": 2}, "zero1"),
          "pp × dp fsdp": ({"pp": 2, "dp": 2}, "fsdp"), "terapipe": ({"pp": 4}, "terapipe")}
SLOW = pytest.mark.slow
# Strategies that step within a batch have no loss scale.
ALONE = [name for name, entry in STRATEGIES.items()
         if name not in MESHES and not entry.kind.steps_within_batch]
SETS = [*(name if name == "fsdp" else pytest.param(name, marks=SLOW) for name in ALONE),
        *(name if "fsdp" in name or "zero1" in name else pytest.param(name, marks=SLOW)
          for name in MESHES)]


def make(name, model, comm):
    if name in MESHES:
        sizes, data_parallel = MESHES[name]
        return make_strategy(data_parallel, model, DeviceMesh(comm, **sizes))
    return make_strategy(name, model, comm)


def start(name, comm, scale):
    strategy = make(name, set_precision(GPT(CONFIG), FP16).initialize(0), comm)
    return strategy, AdamW(strategy.slabs, lr=0.01), LossScaler(scale, interval=2)


def gradients(strategy, scaler, step):
    draw = np.random.default_rng(step)
    rows = np.arange(8)[list(strategy.rows(8))]
    ids, targets = draw.integers(0, 11, (2, 8, 4))
    batch = Microbatch(ids[rows], targets[rows], rows)
    with np.errstate(over="ignore", invalid="ignore"):
        strategy.forward_backward([batch], 0, step, scaler.scale)


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("name", SETS)
@pytest.mark.one_in(2)
def test_one_number_on_one_rank_makes_all_skip(world, name):
    """Whichever rank it is, its other pieces and everybody else's are finite."""
    def body(comm):
        strategy, _, scaler = start(name, comm, 2.0**8)
        gradients(strategy, scaler, 0)
        grads = [slab.complete_grad() for slab in strategy.slabs]
        mine = next(g for g in grads if g.size)
        for bad in range(comm.size):
            good = mine[-1]
            if comm.rank == bad:
                mine[-1] = [np.inf, np.nan, -np.inf, np.inf][bad]
            before = [g.copy() for g in grads]
            assert not unscale(strategy, scaler.scale)
            for was, g in zip(before, grads):
                np.testing.assert_array_equal(was, g)       # as they were
            mine[-1] = good
        assert unscale(strategy, scaler.scale)
    world.run(body)


@worlds(4, mpi=(), slow_mpi=(4,))         # on real ranks, one step: the test above
@pytest.mark.parametrize("name", SETS)
@pytest.mark.one_in(4)
def test_all_ranks_skip_the_same_steps_and_have_the_same_scale(world, name):
    """From a scale that overflows float16: down until it does not, up after two good steps."""
    def run(comm, name):
        strategy, optimizer, scaler = start(name, comm, 2.0**22)
        history = []
        for step in range(10):
            optimizer.zero_grad()
            gradients(strategy, scaler, step)
            before = [slab.data.copy() for slab in strategy.slabs]
            finite = unscale(strategy, scaler.scale)
            scaler.update(not finite)
            if finite:
                strategy.clip_grad_norm(1.0)
                strategy.step(optimizer)
            if name != "dp" or comm.rank == 0:
                assert finite != all((slab.data == was).all()
                                     for slab, was in zip(strategy.slabs, before))
            history.append((finite, scaler.scale))
        if name != "dp":
            state = strategy.state_dict()
            assert not ranks_that_differ(comm, b"".join(state[k].tobytes() for k in sorted(state)))
        assert optimizer.num_steps == sum(f for f, _ in history) or name == "dp" and comm.rank
        return history

    def body(comm):
        history = run(comm, name)
        assert not ranks_that_differ(comm, repr(history).encode())
        assert {finite for finite, _ in history} == {True, False}
        return history
    world.run(body)
