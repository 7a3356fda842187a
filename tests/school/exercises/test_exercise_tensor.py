"""Exercises of tensor and sequence parallelism, on the simulated cluster."""

import numpy as np
import pytest

from minipar.autograd import Tensor, cross_entropy, fused_attention
from minipar.comm import Cluster
from minipar.comm.collectives import chunk_bounds
from minipar.nn import GPT, MLP, GPTConfig, Linear
from minipar.optim import clip
from minipar.parallel.tensor import layers as tensor
from minipar.parallel.tensor import parallelize as cutting
from minipar.parallel.tensor.sequence import SequenceSplit
from minipar.parallel.tensor.vocabulary import vocabulary_cross_entropy

SIZES = [1, 2, 3, 4]


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def close(ours, right, what):
    np.testing.assert_allclose(ours, right, rtol=1e-9, atol=1e-11, err_msg=what)


def row_layer(comm, split):
    """(x entering as columns, the layer's output, the layer) for a layer of 12 inputs."""
    layer = tensor.split_rows(Linear(12, 5), split(comm))
    layer.initialize(0, np.float64)
    layer.bias.data[...] = draw(3, 5)
    start, stop = chunk_bounds(12, comm.size)[comm.rank]
    x = Tensor(draw(1, 2, 12, 12)[..., start:stop].copy(), requires_grad=True)
    return x, layer(x), layer


@pytest.mark.parametrize("p", SIZES)
def test_a_row_layer_is_the_whole_layer(p):
    layer = Linear(12, 5).initialize(0, np.float64)
    layer.bias.data[...] = draw(3, 5)
    right = layer(Tensor(draw(1, 2, 12, 12)))
    right.backward(draw(2, 2, 12, 5))

    def main(comm):
        x, y, mine = row_layer(comm, tensor.TensorSplit)
        close(y.data, right.data, f"rank {comm.rank} of {p}: the output (is the bias added once?)")
        y.backward(draw(2, 2, 12, 5))
        close(mine.bias.grad, layer.bias.grad, f"rank {comm.rank} of {p}: the bias's gradient")
    Cluster(p).run(main)


@pytest.mark.parametrize("p", SIZES)
def test_a_row_layer_that_leaves_with_some_of_the_tokens(p):
    layer = Linear(12, 5).initialize(0, np.float64)
    layer.bias.data[...] = draw(3, 5)
    right = layer(Tensor(draw(1, 2, 12, 12)))
    right.backward(draw(2, 2, 12, 5))

    def main(comm):
        x, y, mine = row_layer(comm, SequenceSplit)
        tokens = slice(*chunk_bounds(12, p)[comm.rank])
        close(y.data, right.data[:, tokens], f"rank {comm.rank} of {p}: the output")
        y.backward(draw(2, 2, 12, 5)[:, tokens].copy())
        close(mine.bias.grad, layer.bias.grad,
              f"rank {comm.rank} of {p}: the bias's gradient needs the tokens of all ranks")
    Cluster(p).run(main)


@pytest.mark.parametrize("heads, kv_heads, p", [(4, 4, 1), (4, 4, 2), (6, 6, 3), (4, 2, 2),
                                                (8, 4, 4), (6, 3, 3)])
def test_every_rank_gets_its_heads(heads, kv_heads, p):
    width = 3
    order = tensor.by_rank(heads, kv_heads, width, p)
    total = (heads + 2 * kv_heads) * width
    assert sorted(order) == list(range(total)), "every column once"
    qkv = draw(0, 2, 5, total)
    right = fused_attention(Tensor(qkv), heads, kv_heads).data
    pieces = np.split(qkv[..., list(order)], p, axis=-1)
    ours = [fused_attention(Tensor(piece.copy()), heads // p, kv_heads // p).data
            for piece in pieces]
    close(np.concatenate(ours, axis=-1), right,
          f"{heads} heads, {kv_heads} of keys and values, on {p} ranks")


def cross_entropies(p, scale=1.0, ignored=(), classes=11):
    """Loss and dlogits of one process, and of p ranks."""
    logits, targets = draw(5, 4, classes) * scale, np.arange(4) * 3 % classes
    targets[list(ignored)] = -100
    whole = Tensor(logits, requires_grad=True)
    loss = cross_entropy(whole, targets)
    loss.backward()

    def main(comm):
        start, stop = chunk_bounds(classes, p)[comm.rank]
        mine = Tensor(logits[:, start:stop].copy(), requires_grad=True)
        ours = vocabulary_cross_entropy(mine, targets, comm, classes)
        ours.backward()
        return float(ours.data), mine.grad
    results, _ = Cluster(p).run(main)
    return float(loss.data), whole.grad, results


@pytest.mark.parametrize("p", SIZES)
@pytest.mark.parametrize("scale, ignored", [(1.0, ()), (1000.0, ()), (1.0, (0, 2))])
def test_the_loss_of_logits_that_nobody_has_all_of(p, scale, ignored):
    loss, gradient, results = cross_entropies(p, scale, ignored)
    for rank, (ours, _) in enumerate(results):
        close(ours, loss, f"rank {rank} of {p}: the loss of logits × {scale}")
    close(np.concatenate([mine for _, mine in results], axis=1), gradient, f"{p} ranks: dlogits")


@pytest.mark.parametrize("p", SIZES)
def test_the_loss_counts_no_padding(p):
    logits, targets = draw(6, 4, 8), np.arange(4)
    padded = np.concatenate([logits[:, :5], np.full((4, 3), 50.0)], axis=1)
    right = float(cross_entropy(Tensor(logits[:, :5]), targets).data)

    def main(comm):
        mine = slice(*chunk_bounds(8, p)[comm.rank])
        ours = vocabulary_cross_entropy(Tensor(padded[:, mine].copy()), targets, comm, 8,
                                        num_classes=5)
        close(float(ours.data), right, f"rank {comm.rank} of {p}: 5 classes, padded to 8")
    Cluster(p).run(main)


def test_the_loss_sends_three_numbers_a_token():
    cluster = Cluster(4, trace=True)
    cluster.run(lambda comm: vocabulary_cross_entropy(
        Tensor(draw(0, 8, 4)), np.zeros(8, int), comm, 16))
    sent = cluster.trace.bytes_sent()
    assert sent == 3 * 2 * 3 * 8 * 8, f"{sent} bytes; 3 all-reduces of 8 float64 take 1,152"


@pytest.mark.parametrize("p", [1, 2, 4])
def test_tokens_come_together_and_their_gradients_are_summed(p):
    x, g = draw(0, 2, 8, 3), [draw(rank + 1, 2, 8, 3) for rank in range(p)]

    def main(comm):
        tokens = slice(*chunk_bounds(8, p)[comm.rank])
        mine = Tensor(x[:, tokens].copy(), requires_grad=True)
        y = SequenceSplit(comm).enter(mine)
        close(y.data, x, f"rank {comm.rank} of {p}: all tokens, in their order")
        y.backward(g[comm.rank])            # every rank uses the tokens in its own way
        close(mine.grad, sum(g)[:, tokens], f"rank {comm.rank} of {p}: the gradient")
    Cluster(p).run(main)


@pytest.mark.parametrize("p", [2, 4])
def test_a_sequence_parallel_model_has_the_gradients_of_one_process(p):
    config, ids = GPTConfig(8, 8, 1, 4, 8), np.arange(16).reshape(2, 8) % 8
    alone = GPT(config).initialize(0, np.float64)
    alone.loss(ids, ids).backward()
    right = {name: parameter.grad for name, parameter in alone.named_parameters()}

    def main(comm):
        model = cutting.parallelize(GPT(config), comm, True).initialize(0, np.float64)
        model.loss(ids, ids).backward()
        for name, ours in model.slabs.gradients().items():
            close(ours, right[name], f"rank {comm.rank} of {p}: {name}")
    Cluster(p).run(main)


def slabs_of_twos(comm):
    """The slabs of an MLP that is cut, all its gradients being 2."""
    slabs = cutting.parallelize(MLP([4, 12, 6, 5]), comm).initialize(0, np.float64).slabs
    for slab in slabs:
        for parameter in slab.parameters:
            parameter.grad = np.full(parameter.shape, 2.0)
    return slabs


@pytest.mark.parametrize("p", SIZES)
def test_the_norm_counts_every_parameter_once(p):
    def main(comm):
        return clip.grad_norm(slabs_of_twos(comm))
    right = 2 * MLP([4, 12, 6, 5]).num_parameters() ** 0.5
    for rank, norm in enumerate(Cluster(p).run(main)[0]):
        assert abs(norm - right) < 1e-9, f"rank {rank} of {p}: {norm}, not {right}"


def test_the_norm_asks_once():
    """Two models on the same ranks, such as two stages: one 8-byte sum for the parts of both."""
    cluster = Cluster(2, trace=True)
    norms, _ = cluster.run(lambda comm: clip.grad_norm(slabs_of_twos(comm) + slabs_of_twos(comm)))
    right = 2 * (2 * MLP([4, 12, 6, 5]).num_parameters()) ** 0.5
    assert abs(norms[0] - right) < 1e-9
    sent = cluster.trace.num_sent(label="control")
    assert sent == 2, f"{sent} messages; one sum of a number takes 2 on 2 ranks"
