"""The costs of context parallelism, counted: bytes, FLOPs, activations, balance in virtual time."""

from collections import Counter

import numpy as np
import pytest

from minipar.autograd import Meter, Tensor
from minipar.comm import Cluster
from minipar.launcher import simulate
from minipar.memory.ledger import Ledger
from minipar.memory.remat.plans import rematerialize, uniform
from minipar.memory.remat.selective import rematerialize_attention
from minipar.nn import GPT, GPTConfig
from minipar.nn.step_context import training_step
from minipar.parallel.context.attention import context_attention
from minipar.parallel.context.parallelize_context import parallelize_context
from minipar.parallel.context.rank_groups import ContextOptions, ContextSplit
from minipar.parallel.context.token_order import positions_of_ranks
from minipar.parallel.cost.activations import layer_activations
from minipar.parallel.cost.context_parallel import (
    computed_pairs,
    product_flops,
    ring_elements,
    ulysses_elements,
)
from minipar.parallel.tensor.parallelize import parallelize
from tests.support.counting import CountingArray
from tests.support.sweeps import every

BATCH, HEADS, KV_HEADS, N, SIZE = 2, 4, 2, 3, 8
WIDTH = (HEADS + 2 * KV_HEADS) * N


def attention(comm, length, order="zigzag", method="ring", heads=HEADS, kv_heads=KV_HEADS, n=N,
              batch=BATCH):
    """(bytes sent in forward, in backward) by this rank."""
    positions = positions_of_ranks(order, length, comm.size)
    shape = (batch, len(positions[comm.rank]), (heads + 2 * kv_heads) * n)
    qkv = Tensor(np.ones(shape), requires_grad=True)
    comm.start_trace()
    out = context_attention(qkv, comm, positions, heads, kv_heads, method)
    forward = comm.stop_trace().bytes_sent()
    comm.start_trace()
    out.backward(np.ones_like(out.data))
    return forward, comm.stop_trace().bytes_sent()


@pytest.mark.parametrize("method", ["ring", "all_gather"])
@pytest.mark.parametrize("order, length", [("zigzag", 24), ("zigzag", 23), ("contiguous", 23),
                                           ("striped", 23)])
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_bytes_of_the_ring_and_of_its_specification(p, order, length, method):
    lengths = [len(each) for each in positions_of_ranks(order, length, p)]
    found = np.array(Cluster(p).run(lambda comm: attention(comm, length, order, method))[0])
    for sent, elements in zip(found.T, ring_elements(lengths, 2 * BATCH * KV_HEADS * N)):
        assert sent.tolist() == (SIZE * elements).tolist()
    if length % (2 * p) == 0:       # the textbook's form
        block = BATCH * length // p * KV_HEADS * N * SIZE
        assert found.tolist() == [[2 * (p - 1) * block, 4 * (p - 1) * block]] * p


@pytest.mark.parametrize("length, p, kv_heads", [(24, 2, 4), (24, 4, 4), (24, 4, 2), (23, 4, 1)])
def test_bytes_of_ulysses(length, p, kv_heads):
    """A layer's forward and backward; the ring's part has one rank and sends nothing."""
    config = GPTConfig(11, length, 1, 4, 12, num_kv_heads=kv_heads)

    def body(comm):
        split = ContextSplit(comm, ContextOptions(ulysses=p))
        model = parallelize_context(GPT(config), split).initialize(0, np.float64)
        ids = np.zeros((BATCH, length), int)
        comm.start_trace()
        loss = model.loss(ids, ids)
        forward = comm.stop_trace().bytes_sent()
        comm.start_trace()
        loss.backward()
        return forward, comm.stop_trace().bytes_sent()
    found = np.array(Cluster(p).run(body)[0])
    lengths = [len(each) for each in positions_of_ranks("contiguous", length, p)]
    if length % p:
        whole = SIZE * ulysses_elements(lengths, BATCH, 4, kv_heads, 3).sum()
        assert found.sum(axis=0).tolist() == [whole, whole]
    else:
        each = SIZE * ulysses_elements(lengths, BATCH, 4, kv_heads, 3)
        assert found.tolist() == np.stack([each, each], axis=1).tolist()
        if kv_heads >= p:           # the textbook's form
            assert each[0] == SIZE * (p - 1) * BATCH * length // p * (2 * 4 + 2 * kv_heads) * 3 // p


def flops_of_attention(comm, order, length, method="ring", keep=None):
    """(forward, backward) FLOPs that this rank reports, which are those that NumPy performs."""
    reports = Counter()

    def compare(before, name, phase, flops, num_bytes):
        if comm.size == 1:          # the counter is that of all ranks
            assert flops == CountingArray.total - before, phase
        reports[phase] += flops
    positions = positions_of_ranks(order, length, comm.size)
    shape = (BATCH, len(positions[comm.rank]), WIDTH)
    with Meter(lambda: CountingArray.total, compare).running():
        qkv = Tensor(np.ones(shape).view(CountingArray), requires_grad=True)
        out = context_attention(qkv, comm, positions, HEADS, KV_HEADS, method, keep=keep, rate=0.5)
        out.backward(np.ones(out.shape).view(CountingArray))
    return reports["forward"], reports["backward"]


@pytest.mark.parametrize("has_dropout", [False, True])
@pytest.mark.parametrize("method", ["ring", "all_gather"])
def test_the_reported_flops_are_performed(method, has_dropout):
    keep = np.ones((BATCH, HEADS, 70, 70), bool) if has_dropout else None
    Cluster(1).run(lambda comm: flops_of_attention(comm, "contiguous", 70, method, keep))


@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
@pytest.mark.parametrize("length, p", [(512, 4), (24, 3)])
def test_flops_are_those_of_the_computed_pairs(order, length, p):
    """Beside the products: 4 FLOPs a pair for its exponential, and what is done once for a query
    or a key, which is less than a percent of the rest in long sequences."""
    pairs = computed_pairs(order, length, p).sum(axis=1)
    found = Cluster(p).run(lambda comm: flops_of_attention(comm, order, length))[0]
    for r in range(p):
        products = product_flops(int(pairs[r]), BATCH, HEADS, N)
        of_softmax = 4 * BATCH * HEADS * int(pairs[r])
        tokens = len(positions_of_ranks(order, length, p)[r]) * BATCH * HEADS
        for counted, expected in zip(found[r], products):
            rest = counted - expected - of_softmax
            assert 0 < rest <= 40 * p * N * tokens


SIZES = {"context": 24, "num_heads": 12, "num_kv_heads": 4, "width": 24}
REMATS = {"none": lambda model: model, "selective": rematerialize_attention,
          "full": lambda model: rematerialize(model, lambda parts: uniform(1, parts))}


def kept(cp, tp, parallel, remat, dropout, num_layers, ulysses):
    """Bytes that each rank keeps for backward."""
    def body(comm):
        row, column = comm.split(comm.rank // tp), comm.split(comm.rank % tp)
        model = GPT(GPTConfig(11, num_layers=num_layers, dropout=dropout, **SIZES))
        if tp > 1:
            parallelize(model, row, parallel != "tensor", parallel == "gathered again")
        parallelize_context(model, ContextSplit(column, ContextOptions(ulysses=ulysses)))
        REMATS[remat](model).initialize(0, np.float64)
        ledger, ids = Ledger(model.parameters()), np.zeros((BATCH, 24), int)
        with ledger.recording(), training_step(0, 0, range(BATCH)):
            loss = model.loss(ids, ids)
        bytes_kept = ledger.live
        loss.backward()
        assert ledger.live == 0
        return bytes_kept
    return np.array(Cluster(cp * tp).run(body)[0])


SPLITS = [(2, 1, "tensor", 1), (3, 1, "tensor", 1), (2, 2, "sequence", 1), (4, 1, "tensor", 2),
          (4, 1, "tensor", 4), (2, 2, "gathered again", 2), (3, 4, "tensor", 3)]


@pytest.mark.parametrize("cp, tp, parallel, ulysses, dropout, remat", every(4, [
    (*split, dropout, remat) for dropout in (0.0, 0.1) for split in SPLITS for remat in REMATS]))
@pytest.mark.one_in(3)
def test_a_layer_keeps_what_the_formula_says(cp, tp, parallel, ulysses, dropout, remat):
    more, less = (kept(cp, tp, parallel, remat, dropout, layers, ulysses) for layers in (3, 2))
    config = GPTConfig(11, num_layers=1, dropout=dropout, **SIZES)
    expected = layer_activations(config, BATCH, tp, parallel, remat, SIZE, cp, ulysses)
    assert set(more - less) == {sum(expected.values())}


def test_a_context_that_cp_does_not_divide():
    with pytest.raises(ValueError, match="cp = 5 does not divide a context of 24"):
        layer_activations(GPTConfig(11, num_layers=1, **SIZES), BATCH, cp=5)


def seconds(p, length, order, bandwidth):
    """Virtual seconds of one forward and backward of attention."""
    cluster = Cluster(p, latency=0, bandwidth=bandwidth, flops_per_second=1e9,
                      memory_bandwidth=1e15)
    return simulate(lambda comm: attention(comm, length, order, heads=1, kv_heads=1, n=64, batch=1),
                    cluster)[1]


@pytest.mark.parametrize("p", [2, 4])
def test_contiguous_takes_longer_by_the_imbalance(p):
    """With fast links the time is that of the rank with the most pairs."""
    length = 128 * p
    times = {order: seconds(p, length, order, 1e15) for order in ("zigzag", "contiguous")}
    pairs = {order: computed_pairs(order, length, p).sum(axis=1).max() for order in times}
    assert times["contiguous"] / times["zigzag"] == pytest.approx(
        pairs["contiguous"] / pairs["zigzag"], rel=0.02)


def test_messages_hide_behind_the_block_that_is_computed():
    """A hop that takes less time than its block costs nothing; one that takes longer, the rest."""
    p, length = 4, 512
    free, slow = seconds(p, length, "zigzag", 1e15), seconds(p, length, "zigzag", 4e8)
    block = 2 * 128 * 64 * SIZE / 4e8               # of k and v: less than 10 n c² FLOPs take
    assert slow < free + 3 * block                  # of 9 messages only the last ones show
