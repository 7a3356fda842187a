"""The costs of tensor and sequence parallelism: messages and activations, counted exactly."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, MLP, GPTConfig
from minipar.parallel.tensor.parallelize import parallelize

B, T, D, HEADS, V, SIZE = 2, 8, 24, 12, 11, 8       # float64
IDS = np.random.default_rng(0).integers(0, V, (B, T))
MODES = {"tensor": {}, "sequence": {"sequence_parallel": True},
         "gather again": {"sequence_parallel": True, "gather_again": True}}


def build(num_layers):
    return GPT(GPTConfig(V, T, num_layers, HEADS, D))


def step(p, num_layers, mode):
    """(trace of one forward and backward, activation bytes of each rank after forward)."""
    def body(comm):
        model = parallelize(build(num_layers), comm, **MODES[mode]).initialize(0, np.float64)
        ledger = Ledger(model.parameters())
        with ledger.recording():
            loss = model.loss(IDS, IDS)
        kept = ledger.live
        loss.backward()
        assert ledger.live == 0
        return kept
    cluster = Cluster(p, trace=True)
    kept, _ = cluster.run(body)
    return cluster.trace, kept


def in_a_layer(p, mode, count):
    """count(trace) of one transformer layer: what a third layer adds."""
    three, two = (step(p, layers, mode)[0] for layers in (3, 2))
    return count(three) - count(two)


@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.one_in(2)
def test_a_layer_takes_two_and_two_all_reduces(p):
    n = SIZE * B * T * D
    assert in_a_layer(p, "tensor", lambda t: t.num_sent()) == 4 * 2 * (p - 1) * p
    assert in_a_layer(p, "tensor", lambda t: t.num_sent(label="all_reduce")) == 4 * 2 * (p - 1) * p
    assert in_a_layer(p, "tensor", lambda t: t.bytes_sent()) == 4 * 2 * (p - 1) * n


@pytest.mark.parametrize("p", [2, 3, 4])
def test_the_whole_step(p):
    """Besides the layers: g of the embedding, f of the head, 3 numbers a token in the loss."""
    n, trace = SIZE * B * T * D, step(p, 2, "tensor")[0]
    assert trace.bytes_sent() == 2 * (p - 1) * ((4 * 2 + 2) * n + 3 * SIZE * B * T)
    assert trace.num_sent() == 2 * (p - 1) * p * (4 * 2 + 2 + 3)


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.one_in(2)
def test_sequence_parallelism_sends_equal_bytes(p):
    """An all-reduce in two halves; and the gradients of the small weights used on split tokens."""
    n = SIZE * B * T * D
    for label in ("all_gather", "reduce_scatter"):
        sent = in_a_layer(p, "sequence", lambda t, label=label: t.bytes_sent(label=label))
        assert sent == 4 * (p - 1) * n
    weights = SIZE * (4 + 2) * D            # two layer norms, two biases
    assert in_a_layer(p, "sequence", lambda t: t.bytes_sent(label="all_reduce")) \
        == 2 * (p - 1) * weights
    again = in_a_layer(p, "gather again", lambda t: t.bytes_sent(label="all_gather"))
    assert again == 6 * (p - 1) * n         # 10 in place of 8 halves


@pytest.mark.parametrize("p", [1, 2, 4])
@pytest.mark.parametrize("mode, whole, split", [
    ("tensor", 4 * B * T * D + 2 * B * T, 12 * B * T * D),
    ("sequence", 2 * B * T * D, 14 * B * T * D + 2 * B * T),
    ("gather again", 0, 16 * B * T * D + 2 * B * T)])
def test_a_layer_keeps_what_the_formula_says(p, mode, whole, split):
    """In elements: the norms' 2 btd + 2 bt, the 2 btd that the column layers take, and the rest,
    12 btd + b h t² (qkv 3, probabilities, projected 1, GELU's slope and output 8)."""
    three, two = (np.array(step(p, layers, mode)[1]) for layers in (3, 2))
    assert ((three - two) == SIZE * (whole + (split + B * HEADS * T * T) // p)).all()


@pytest.mark.parametrize("p", [2, 4])
def test_an_mlp_reduces_once_a_pair_and_direction(p):
    sizes, batch = [6, 8, 6, 8, 6, 3], 5    # two pairs, and one layer that is replicated
    x, labels = np.ones((batch, 6)), np.zeros(batch, np.int64)

    def body(comm):
        model = parallelize(MLP(sizes), comm).initialize(0, np.float64)
        model.loss(x, labels).backward()
    cluster = Cluster(p, trace=True)
    cluster.run(body)
    # The first f has nothing to do: x takes no gradient.
    assert cluster.trace.num_sent() == 2 * (p - 1) * p * 3
    assert cluster.trace.bytes_sent() == 2 * (p - 1) * 3 * SIZE * batch * 6
