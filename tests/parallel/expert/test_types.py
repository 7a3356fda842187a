"""The types I, R, V, P know the exchange of rows, and find a router that is not summed."""

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.nn import GPTConfig, MoEConfig
from minipar.nn.gpt import make_mlp
from minipar.parallel.check_types import check_types
from minipar.parallel.conjugate import copy_to
from minipar.parallel.expert.distribute_experts import distribute_experts
from minipar.parallel.expert.exchange import return_rows, send_rows

CONFIG = GPTConfig(9, width=6, num_heads=1, mlp_width=5,
                   experts=MoEConfig(4, balance_loss=0.0))
TABLE = ((1, 2), (0, 1))


def loss_of(comm, sums_router):
    layer = distribute_experts(make_mlp(CONFIG, 0), comm).initialize(0, np.float64)
    if sums_router:
        for parameter in layer.router.parameters():
            parameter.on_use(lambda weight: copy_to(weight, comm))
    x = Tensor(np.random.default_rng(comm.rank).standard_normal((5, 6)))
    return layer, (layer(x) * 1.0).sum()


def test_experts_vary_and_the_router_passes_copy_to():
    def body(comm):
        layer, loss = loss_of(comm, True)
        named = dict(layer.named_parameters())
        assert check_types(loss, comm, named, {n for n in named if "experts" in n}, "V") == "V"
        layer, loss = loss_of(comm, False)
        named = dict(layer.named_parameters())
        with pytest.raises(TypeError, match="router.weight is I, .* copy_to it before this use"):
            check_types(loss, comm, named, {n for n in named if "experts" in n}, "V")
    Cluster(2).run(body)


def test_rows_of_all_ranks_cannot_be_exchanged_again():
    def body(comm):
        x = Tensor(np.ones((3 if comm.rank == 0 else 1, 2)), requires_grad=True)
        with pytest.raises(TypeError, match="SendRows takes V, but x is I"):
            check_types(send_rows(x, comm, TABLE).sum(), comm, {"x": x})
    Cluster(2).run(body)


def test_the_two_exchanges_are_conjugate():
    """⟨A x, y⟩ = ⟨x, Aᵀ y⟩, and the results of rows come back to where these came from."""
    def body(comm):
        rng = np.random.default_rng(comm.rank)
        x = Tensor(rng.standard_normal((sum(TABLE[comm.rank]), 2)), requires_grad=True)
        there = send_rows(x, comm, TABLE)
        assert len(there.data) == sum(row[comm.rank] for row in TABLE)
        np.testing.assert_array_equal(return_rows(there, comm, TABLE).data, x.data)
        y = rng.standard_normal(there.shape)
        there.backward(y)
        return np.sum(there.data * y), np.sum(x.data * x.grad)
    found = np.array(Cluster(2).run(body)[0])
    assert found[:, 0].sum() == pytest.approx(found[:, 1].sum(), rel=1e-14)
