"""Formulas of experts are what is counted: parameters, FLOPs, bytes of messages and activations."""

import numpy as np
import pytest

from minipar.autograd import Meter, Tensor
from minipar.comm import Cluster
from minipar.memory.ledger import Ledger
from minipar.nn import GPTConfig, MoEConfig
from minipar.nn.gpt import make_mlp
from minipar.parallel.cost.experts import (
    all_to_all_bytes,
    exchanged_bytes,
    forward_flops,
    layer_activations,
    layer_parameters,
)
from minipar.parallel.expert.distribute_experts import distribute_experts

N, D = 12, 6


def config(mlp="gelu", bias=True, **experts) -> GPTConfig:
    return GPTConfig(9, width=D, num_heads=1, mlp_width=5, mlp=mlp, bias=bias,
                     experts=MoEConfig(**{"num_experts": 4, "balance_loss": 0.0, **experts}))


def tokens(seed=0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal((N, D)), requires_grad=True)


@pytest.mark.parametrize("sizes", [config(), config("swiglu", False), config(num_shared=2),
                                   config("swiglu", num_shared=1, bias_rate=0.1, width=7)])
def test_parameters_and_flops(sizes):
    layer = make_mlp(sizes, 0).initialize(0, np.float64)
    assert layer.num_parameters() == layer_parameters(sizes)
    meter = Meter()
    with meter.running():
        layer(tokens())
    with_biases = meter.total_flops(names=("Linear", "GroupedLinear"))
    rows = N * sizes.experts.top_k
    wide, shared = sizes.experts.width or 5, sizes.experts.num_shared
    matrices = 3 if sizes.mlp == "swiglu" else 2
    sums = (matrices - 1) * wide * (rows + N * shared) + D * (rows + N * bool(shared))
    assert with_biases - sums * sizes.bias == forward_flops(sizes, N)
    unused = sizes.experts.num_experts - sizes.experts.top_k
    per_expert = matrices * D * wide + ((matrices - 1) * wide + D) * sizes.bias
    assert layer_parameters(sizes) - layer_parameters(sizes, True) == unused * per_expert


@pytest.mark.parametrize("sizes", [config(), config("swiglu", False), config(top_k=1)])
@pytest.mark.parametrize("ep", [1, 2, 4])
def test_activations(sizes, ep):
    def body(comm):
        layer = make_mlp(sizes, 0)
        if comm.size > 1:
            distribute_experts(layer, comm)
        layer.initialize(0, np.float64)
        rows, ledger, plain = [], Ledger(layer.parameters()), layer.experts.c_fc.forward

        def noting(x, counts):
            rows.append(len(x.data))
            return plain(x, counts)
        layer.experts.c_fc.forward = noting
        with ledger.recording():
            y = layer(tokens(comm.rank))
        kept = layer_activations(sizes, N, rows[0], comm.size, 8)
        assert ledger.live == sum(kept.values()), (ledger.live, kept)
        y.backward(np.ones(y.shape))
        assert ledger.live == 0
    Cluster(ep).run(body)


@pytest.mark.parametrize("ep", [2, 4])
def test_bytes_of_all_to_alls(ep):
    """Even use is the closed form; otherwise the rows that leave a rank count."""
    sizes = config(top_k=2)

    def body(comm, even):
        layer = distribute_experts(make_mlp(sizes, 0), comm).initialize(0, np.float64)
        if even:        # token i takes experts i and i + 1
            layer.router.choose = lambda scores: np.array([[i % 4, (i + 1) % 4] for i in range(N)])
        counts = []
        combine = layer.experts.forward
        layer.experts.forward = lambda x, c: (counts.append(c), combine(x, c))[1]
        y = layer(tokens(comm.rank))
        y.backward(np.ones(y.shape))
        return counts[0]
    for even in (True, False):
        cluster = Cluster(ep, trace=True)
        by_rank = np.array(cluster.run(lambda comm, even=even: body(comm, even))[0])
        table = by_rank.reshape(ep, ep, 4 // ep).sum(axis=2).tolist()
        sent = cluster.trace.bytes_sent(label="all_to_all")
        both = [exchanged_bytes(table, rank, D, 8) for rank in range(ep)]
        assert sent == 2 * sum(map(sum, both))
        messages = cluster.trace.num_sent(label="all_to_all")
        assert messages <= 4 * ep * (ep - 1), "two all-to-alls forward and two backward"
        if even:
            assert sent == 4 * ep * all_to_all_bytes(sizes, N, ep, 8)
        assert cluster.trace.bytes_sent(label="control") == ep * (ep - 1) * 4 * 8


def test_a_dense_model_has_no_experts():
    with pytest.raises(ValueError, match="give a GPTConfig with experts"):
        layer_parameters(GPTConfig(9))
