"""Exercises on experts: gates, places, the balance loss, rows that travel."""

import numpy as np
import pytest

from minipar.autograd import Tensor
from minipar.comm import Cluster
from minipar.nn import GPTConfig, MoEConfig
from minipar.nn.gpt import make_mlp
from minipar.nn.moe import dispatch
from minipar.nn.step_context import training_step
from minipar.parallel.expert.distribute_experts import distribute_experts

WIDTH = 5


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def layer(**experts):
    """A layer of 6 experts whose router tells tokens apart."""
    config = MoEConfig(**{"num_experts": 6, **experts})
    made = make_mlp(GPTConfig(9, width=WIDTH, num_heads=1, mlp_width=4, experts=config), 0)
    made.initialize(0, np.float64)
    for i, parameter in enumerate(made.parameters()):
        parameter.data[...] = draw(i, *parameter.shape)
    return made


def close(found, right, what):
    np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-11, err_msg=what)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


# router_gates

def test_gates_are_the_scores_of_the_chosen():
    for top_k in (1, 2, 3):
        router = layer(top_k=top_k, renormalize=False).router
        routed = router(Tensor(draw(1, 7, WIDTH)))
        scores = softmax(draw(1, 7, WIDTH) @ router.weight.data)
        best = np.argsort(-scores, axis=1)[:, :top_k]
        close(routed.scores.data, scores, "scores (n, E)")
        assert (routed.ids == best).all(), "ids come from self.choose(scores.data)"
        close(routed.gates.data, np.take_along_axis(scores, best, 1),
              f"top_k = {top_k}, not renormalized: gates (n, k)")


def test_gates_add_up_to_the_scale():
    for scale in (1.0, 2.5):
        routed = layer(top_k=3, scale=scale).router(Tensor(draw(1, 7, WIDTH)))
        close(routed.gates.data.sum(axis=1), np.full(7, scale), "renormalized gates of each token")


def test_the_bias_chooses_and_does_not_weigh():
    router = layer(bias_rate=0.1).router
    router.bias.data[...] = [0, 0, 0, 9, 0, 9]
    routed = router(Tensor(draw(1, 7, WIDTH)))
    assert set(routed.ids.ravel().tolist()) == {3, 5}
    chosen = np.take_along_axis(softmax(draw(1, 7, WIDTH) @ router.weight.data), routed.ids, 1)
    close(routed.gates.data, chosen / chosen.sum(axis=1, keepdims=True), "gates without the bias")


def test_the_router_learns_from_the_gates():
    for top_k in (1, 2):
        made = layer(top_k=top_k)
        made.router(Tensor(draw(1, 7, WIDTH))).gates[:, 0].sum().backward()
        grad = made.router.weight.grad
        assert grad is not None and np.abs(grad).max() > 1e-3, \
            f"top_k = {top_k}: the gates have no gradient for the router's weight"


# capacity_places

IDS = np.array([[0, 1], [0, 1], [1, 0], [0, 2]])


def places(order, group_size=4, ids=IDS, scores=None):
    return np.asarray(dispatch.queue_places(ids, group_size, order, scores)).tolist()


def test_places_by_choice():
    assert places("choice") == [[0, 1], [1, 2], [0, 3], [2, 0]], \
        "expert 0: the first choices of tokens 0, 1, 3, then the second one of token 2"


def test_places_by_token():
    assert places("token") == [[0, 0], [1, 1], [2, 2], [3, 0]]


def test_places_by_probability():
    scores = np.array([[0.5, 0.3], [0.6, 0.2], [0.4, 0.35], [0.9, 0.1]])
    assert places("probability", scores=scores) == [[2, 1], [1, 2], [0, 3], [0, 0]]


def test_every_group_has_queues_of_its_own():
    assert places("token", 2) == [[0, 0], [1, 1], [0, 0], [1, 0]]
    assert places("choice", 2) == [[0, 0], [1, 1], [0, 1], [0, 0]]


@pytest.mark.parametrize("order", ["choice", "token", "probability"])
def test_each_queue_counts_from_0_without_gaps(order):
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((15, 6)), axis=1)[:, :3]
    found = np.array(places(order, 5, ids, rng.random((15, 3))))
    for group in range(3):
        for expert in range(6):
            queue = found[5 * group:5 * group + 5][ids[5 * group:5 * group + 5] == expert]
            assert sorted(queue) == list(range(len(queue))), f"group {group}, expert {expert}"


# balance_of_sequences

def balance(made, x, num_samples, shares):
    """The loss of tokens x (n, d), and what the router says of them."""
    time = len(x.data) // max(num_samples, 1)
    with training_step(0, 0, range(num_samples), shares=np.array(shares, float)) as step:
        routed = made.router(x)
        return made.router.balance_of_sequences(routed, num_samples, time, step), routed


def test_the_balance_loss_of_each_sequence():
    made, shares = layer(top_k=2), [0.5, 0.2, 0.1]
    loss, routed = balance(made, Tensor(draw(3, 12, WIDTH)), 3, shares)
    right = 0.0
    for s, share in enumerate(shares):
        ids, scores = routed.ids[4 * s:4 * s + 4], routed.scores.data[4 * s:4 * s + 4]
        f = np.bincount(ids.ravel(), minlength=6) / 8
        right += share * 6 * float(f @ scores.mean(axis=0))
    close(float(loss.data), right, "three sequences of four tokens, with shares 0.5, 0.2, 0.1")


def test_the_balance_loss_flows_through_the_mean_scores():
    made, shares = layer(top_k=2), [0.5, 0.2, 0.1]
    loss, routed = balance(made, Tensor(draw(3, 12, WIDTH)), 3, shares)
    loss.backward()
    right = np.zeros((12, 6))
    for s, share in enumerate(shares):
        f = np.bincount(routed.ids[4 * s:4 * s + 4].ravel(), minlength=6) / 8
        p = routed.scores.data[4 * s:4 * s + 4]
        right[4 * s:4 * s + 4] = share * 6 / 4 * p * (f - (p @ f)[:, None])      # of the logits
    close(made.router.weight.grad, draw(3, 12, WIDTH).T @ right, "the gradient of the weight")


def test_even_use_costs_1():
    made = layer(top_k=2)
    made.router.weight.data[...] = 0
    loss, _ = balance(made, Tensor(draw(3, 12, WIDTH)), 2, [0.5, 0.5])
    close(float(loss.data), 1.0, "all scores are 1/E")


def test_no_token_costs_nothing():
    loss, _ = balance(layer(top_k=2), Tensor(np.zeros((0, WIDTH))), 0, [])
    assert float(loss.data) == 0


# distributed_experts

def run(comm, num_tokens):
    """(output, gradient of x, whole gradients of this rank's experts) of a layer on p ranks."""
    made = layer(top_k=2, balance_loss=0.0)
    if comm.size > 1:
        distribute_experts(made, comm)
    x = Tensor(draw(comm.rank, num_tokens(comm.rank), WIDTH), requires_grad=True)
    y = made(x)
    y.backward(draw(9 + comm.rank, *y.shape))
    return y.data, x.grad, {name: (p.box[0], p.grad)
                            for name, p in made.experts.named_parameters()}


def alone(rank, num_tokens):
    """What one process computes of the tokens of `rank`."""
    made = layer(top_k=2, balance_loss=0.0)
    x = Tensor(draw(rank, num_tokens(rank), WIDTH), requires_grad=True)
    y = made(x)
    y.backward(draw(9 + rank, *y.shape))
    return y.data, x.grad, {name: p.grad for name, p in made.experts.named_parameters()}


SIZES = [1, 2, 3, 4]


def uneven(rank):
    return 3 + 2 * rank


@pytest.mark.parametrize("p", SIZES)
def test_distributed_experts_are_those_of_one_process(p):
    found, _ = Cluster(p).run(lambda comm: run(comm, uneven))
    for rank, (y, _, _) in enumerate(found):
        close(y, alone(rank, uneven)[0], f"rank {rank} of {p}: the output of its tokens")


@pytest.mark.parametrize("p", SIZES)
def test_gradients_of_distributed_experts(p):
    found, _ = Cluster(p).run(lambda comm: run(comm, uneven))
    each = [alone(rank, uneven) for rank in range(p)]
    for rank, (_, dx, experts) in enumerate(found):
        close(dx, each[rank][1], f"rank {rank} of {p}: the gradient of its tokens")
        for name, ((start, stop), grad) in experts.items():
            right = sum(gradients[name][start:stop] for _, _, gradients in each)
            close(grad, right, f"rank {rank} of {p}: {name}, a sum over the tokens of all ranks")


def test_two_all_to_alls_in_forward_two_in_backward():
    cluster = Cluster(3, trace=True)
    cluster.run(lambda comm: run(comm, uneven))
    sent = cluster.trace.num_sent(label="all_to_all")
    assert sent == 4 * 3 * 2, f"{sent} messages; four all-to-alls of 3 ranks have {4 * 3 * 2}"


def test_a_rank_without_rows():
    def none_on_rank_1(rank):
        return 0 if rank == 1 else 6
    found, _ = Cluster(3).run(lambda comm: run(comm, none_on_rank_1))
    for rank, (y, dx, _) in enumerate(found):
        right = alone(rank, none_on_rank_1)
        close(y, right[0], f"rank {rank}: the output")
        close(dx, right[1], f"rank {rank}: the gradient")
