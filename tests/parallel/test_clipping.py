"""`minipar.optim.clip_grad_norm` knows the norm of all gradients, wherever a strategy has them."""

from functools import cache

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, GPTConfig
from minipar.optim import AdamW, clip_grad_norm
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.parallel.tensor.parallelize import parallelize
from minipar.testing import worlds
from tests.support.cases import ALL, Case
from tests.support.sweeps import every_mesh

CASE = Case("gpt deep tied", parts=(6,))
MESHES = [{"pp": 4}, {"dp": 4}, {"tp": 4}, {"pp": 2, "dp": 2, "tp": 2}]


def clipped(comm, make, model, batch) -> tuple[float, dict]:
    """The norm, and this rank's gradients after they were clipped to a tenth of it."""
    strategy = make(model, comm)
    rows = list(strategy.rows(len(batch[0])))
    strategy.forward_backward([Microbatch(*(array[rows] for array in batch))])
    norm = clip_grad_norm(strategy.slabs, 1e9)
    assert clip_grad_norm(strategy.slabs, float(norm) / 10) == norm
    has_some = not (type(strategy).__name__ == "DataParallel" and comm.rank)
    return norm, (strategy.slabs.gradients() if has_some else {})


@cache
def alone():
    return Cluster(1).run(lambda comm: clipped(comm, Strategy, *of_case()))[0][0]


def of_case():
    return CASE.build(), (*CASE.batch(0), np.arange(6))


@worlds(4, mpi=(), slow_mpi=(4,))
@pytest.mark.parametrize("name", every_mesh(4, [
    name for name in ALL if "sequence" not in name and name != "alone"]))
@pytest.mark.one_in(8)
def test_every_strategy(world, name):
    right, gradients = alone()

    def body(comm):
        norm, found = clipped(comm, ALL[name], *of_case())
        assert norm == pytest.approx(right, rel=1e-12)
        for key, values in found.items():
            np.testing.assert_allclose(values, gradients[key], rtol=1e-9, atol=1e-13, err_msg=key)
    world.run(body)


@pytest.mark.parametrize("how", ["ddp", "zero1", "zero2", "zero3", "fsdp"])
@pytest.mark.parametrize("sizes", MESHES, ids=lambda sizes: "-".join(map("{0[0]}{0[1]}".format,
                                                                         sizes.items())))
@pytest.mark.one_in(2)
def test_every_mesh(sizes, how):
    ids = np.random.default_rng(0).integers(0, 11, (8, 6))

    def model():
        return GPT(GPTConfig(11, 6, 4, 4, 8)).initialize(0, np.float64)
    batch = ids, ids, np.arange(8)
    ((right, _),), _ = Cluster(1).run(lambda comm: clipped(comm, Strategy, model(), batch))
    found, _ = Cluster(int(np.prod([*sizes.values()]))).run(lambda comm: clipped(
        comm, lambda model, comm: make_strategy(how, model, DeviceMesh(comm, **sizes)),
        model(), batch))
    assert [norm for norm, _ in found] == pytest.approx([right] * len(found), rel=1e-12)


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3", "fsdp"])
def test_shards_of_a_model_that_is_cut_are_refused(name):
    """Such a shard would not know the ranks of tp."""
    def body(comm):
        mesh = DeviceMesh(comm, dp=2, tp=2)
        model = parallelize(GPT(GPTConfig(11, 6, 1, 2, 4)), mesh["tp"]).initialize()
        with pytest.raises(ValueError, match=r"weight is cut over .*DeviceMesh\(comm, dp=2,"):
            make_strategy(name, model, mesh["dp"])
    Cluster(4).run(body)


@pytest.mark.parametrize("name", ["zero1", "zero3", "fsdp", "naive", "1f1b"])
def test_the_model_s_slabs_are_not_what_is_clipped_or_optimized(name):
    def body(comm):
        strategy = ALL[name](CASE.build(), comm)
        for use in (lambda slabs: clip_grad_norm(slabs, 1.0), AdamW):
            with pytest.raises(ValueError, match=r"strategy\.slabs"):
                use(strategy.model.slabs)
    Cluster(2).run(body)
