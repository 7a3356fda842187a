"""Mixtures of experts in one process, against their definition, computed token by token."""


import numpy as np
import pytest

from minipar.autograd import Tensor, gradcheck, no_grad
from minipar.memory.remat.recompute import checkpoint
from minipar.nn.moe.dispatch import capacity, choose_experts, queue_places
from minipar.nn.moe.router import balance_step
from minipar.nn.step_context import training_step
from tests.support.moe_by_definition import kept_choices, mixture, softmax
from tests.support.moe_layer import WIDTH, draw, layer, training

CASES = {
    "top 1": {"top_k": 1}, "top 2": {}, "top 3 of 5": {"num_experts": 5, "top_k": 3},
    "not renormalized": {"renormalize": False}, "scaled": {"scale": 2.5},
    "by choice": {"capacity_factor": 0.8}, "by token": {"capacity_factor": 0.8, "drop": "token"},
    "by probability": {"capacity_factor": 0.7, "drop": "probability"},
    "top 1 dropped": {"top_k": 1, "capacity_factor": 0.5},
    "one group": {"capacity_factor": 0.8, "capacity_per": "microbatch"},
}


@pytest.mark.parametrize("name", CASES)
def test_the_output_is_that_of_the_definition(name):
    made, x = layer(**CASES[name]), draw(3, 7, WIDTH)
    config, state = made.config, made.state_dict()
    tokens = x.reshape(21, WIDTH)
    scores = softmax(tokens @ state["router.weight"])
    ids = np.argsort(-scores, axis=1)[:, :config.top_k]
    gates = np.take_along_axis(scores, ids, 1)
    kept = np.ones(ids.shape, bool)
    if config.capacity_factor:
        group = 21 if config.capacity_per == "microbatch" else 7
        places = capacity(group, config.num_experts, config.top_k, config.capacity_factor)
        kept = kept_choices(ids, gates, group, places, config.drop)
    if config.renormalizes:
        gates = gates / gates.sum(1, keepdims=True)
    with training(3):
        y = made(Tensor(x))
    expected = mixture(tokens, state, ids, gates * config.scale, kept)
    np.testing.assert_allclose(y.data.reshape(21, WIDTH), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(made.load, np.bincount(ids.ravel(), minlength=len(made.load)))
    assert made.num_dropped == kept.size - kept.sum()
    assert (made.num_dropped > 0) == (config.capacity_factor is not None)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.one_in(3)
def test_its_gradients_are_those_of_finite_differences(name):
    """Of the input, the router and all experts; some experts have no row."""
    made, x = layer(**CASES[name]), Tensor(draw(2, 4, WIDTH), requires_grad=True)

    def output(*inputs):
        with training(2):
            return made(inputs[0])
    gradcheck(output, x, *made.parameters())
    assert np.abs(made.router.weight.grad).max() > 1e-3, "the gates must multiply the output"


@pytest.mark.parametrize("changes", [
    {"balance_loss": 0.3}, {"z_loss": 0.2}, {"balance_loss": 0.3, "z_loss": 0.2},
    {"balance_loss": 0.3, "balance_per": "batch"}, {"balance_loss": 0.3, "scores": "sigmoid"},
    {"balance_loss": 0.3, "capacity_factor": 0.5}])
def test_the_gradient_of_its_losses_flows_through_scores_alone(changes):
    """Finite differences leave the choices as they are: f counts them and has no gradient."""
    made, x = layer(**changes), Tensor(draw(2, 3, WIDTH), requires_grad=True)

    def losses(x, weight):
        with training(2) as step:
            return made.router.losses(made.router(x.reshape(6, WIDTH)), 2, step)
    gradcheck(losses, x, made.router.weight)
    x.grad, made.router.weight.grad = None, None
    losses(x, made.router.weight).backward()
    alone = x.grad.copy(), made.router.weight.grad.copy()
    with training(2):
        y = made(x)
    x.grad, made.router.weight.grad = None, None
    y.backward(np.zeros(y.shape))                   # what is left is the gradient of the losses
    for grad, expected in zip((x.grad, made.router.weight.grad), alone):
        assert np.abs(expected).max() > 1e-4
        np.testing.assert_allclose(grad, expected, rtol=1e-12, atol=1e-15)


def test_the_balance_loss_of_a_batch_is_not_the_mean_of_its_sequences():
    x, found = draw(4, 6, WIDTH), {}
    for per in ("batch", "sequence"):
        made = layer(balance_loss=1.0, balance_per=per)
        with training(4) as step:
            routed = made.router(Tensor(x.reshape(24, WIDTH)))
            found[per] = float(made.router.losses(routed, 4, step).data)
    p = routed.scores.data.reshape(4, 6, 4)
    f = np.array([np.bincount(ids.ravel(), minlength=4) for ids in routed.ids.reshape(4, 12)]) / 12
    assert found["sequence"] == pytest.approx(4 * np.mean((f * p.mean(1)).sum(1)), rel=1e-12)
    assert found["batch"] == pytest.approx(4 * (f.mean(0) * p.mean((0, 1))).sum(), rel=1e-12)
    assert abs(found["batch"] - found["sequence"]) > 1e-3


def test_even_use_has_a_balance_loss_of_1():
    made = layer(balance_loss=1.0, num_experts=4, top_k=1)
    made.router.weight.data[...] = 0                # all scores 1/4
    with training(1) as step:
        loss = made.router.losses(made.router(Tensor(draw(8, WIDTH))), 1, step)
    assert float(loss.data) == pytest.approx(1)


def test_scores_of_sigmoids_in_groups_with_a_bias():
    """The bias chooses, and does not weigh; a group counts by its two best experts."""
    made = layer(num_experts=6, scores="sigmoid", num_groups=3, top_groups=1, bias_rate=0.1)
    made.router.bias.data[...] = np.array([0, 0, 0, 0, 5, 5])
    x = Tensor(draw(8, WIDTH))
    routed = made.router(x)
    assert set(routed.ids.ravel().tolist()) == {4, 5}
    scores = 1 / (1 + np.exp(-x.data @ made.router.weight.data))
    chosen = np.take_along_axis(scores, routed.ids, 1)
    np.testing.assert_allclose(routed.gates.data, chosen / chosen.sum(1, keepdims=True), rtol=1e-12)
    best = choose_experts(np.array([[9.0, 0, 5, 5, 6, 0]]), 2, 3, 1)
    assert best.tolist() == [[2, 3]], "9 + 0 is less than 5 + 5"
    assert choose_experts(np.array([[-9.0, -9, -5, -5]]), 1, 2, 1).tolist() == [[2]]


def test_the_bias_moves_towards_the_mean_load():
    np.testing.assert_allclose(balance_step(np.array([3, 5, 4, 4]), 0.1), [0.1, -0.1, 0, 0])


def test_places_are_counted_from_0_in_each_queue():
    ids = np.array([[0, 1], [0, 1], [1, 0]])
    assert queue_places(ids, 3, "choice").tolist() == [[0, 1], [1, 2], [0, 2]]
    assert queue_places(ids, 3, "token").tolist() == [[0, 0], [1, 1], [2, 2]]
    assert queue_places(ids, 2, "token").tolist() == [[0, 0], [1, 1], [0, 0]]
    scores = np.array([[1.0, 9], [2, 8], [7, 3]])
    assert queue_places(ids, 3, "probability", scores).tolist() == [[2, 0], [1, 1], [2, 0]]
    assert [capacity(6, 4, 2, c) for c in (1.0, 1.1, 0.1)] == [3, 4, 1]


@pytest.mark.parametrize("shape", [(0, 5, WIDTH), (0, WIDTH), (1, 1, WIDTH)])
@pytest.mark.parametrize("changes", [{}, {"capacity_factor": 1.0, "balance_loss": 0.1,
                                          "z_loss": 0.1, "balance_per": "batch"}])
def test_few_tokens_or_none(shape, changes):
    made, x = layer(**changes), Tensor(draw(*shape), requires_grad=True)
    with training_step(0, 0, range(shape[0]), shares=np.ones(shape[0])):
        y = made(x)
    y.backward(np.ones(y.shape))
    assert y.shape == shape and x.grad.shape == shape
    for parameter in made.parameters():
        assert np.isfinite(parameter.grad).all()


def test_outside_of_training_nothing_is_dropped_added_or_counted():
    made, x = layer(capacity_factor=0.3, balance_loss=1.0, z_loss=1.0), Tensor(draw(2, 8, WIDTH))
    whole = layer()
    with no_grad():
        np.testing.assert_array_equal(made(x).data, whole(x).data)
    assert made.load.sum() == 0 and made.counted_step is None


def test_a_layer_that_is_computed_again_counts_once():
    made, x = layer(balance_loss=0.1, balance_per="batch"), Tensor(draw(2, 8, WIDTH), True)
    sums = []

    def sum_over_samples(array):
        sums.append(array)
        return array
    with training_step(0, 0, range(2), shares=np.full(2, 0.5),
                       sum_over_samples=sum_over_samples):
        y = checkpoint(made, x)
    y.backward(np.ones(y.shape))
    assert made.load.sum() == 2 * 8 * 2 and len(sums) == 1


def test_a_bias_that_was_not_updated_is_noticed():
    made, x = layer(bias_rate=0.1), Tensor(draw(2, 4, WIDTH))
    for _ in range(2):                              # microbatches of a step
        with training(2, step=0):
            made(x)
    with training(2, step=1), pytest.raises(ValueError, match=r"call balance_routers\(strategy\)"):
        made(x)
    made.forget_counts()
    with training(2, step=1):
        made(x)


def test_losses_need_shares():
    with training_step(0, 0, range(2)), pytest.raises(ValueError, match="give training_step"):
        layer(balance_loss=0.1)(Tensor(draw(2, 4, WIDTH)))


def test_capacity_of_a_microbatch_is_for_one_rank():
    made = layer(capacity_factor=1.0, capacity_per="microbatch")
    with training_step(0, 0, range(2), shares=np.ones(2),
                       sum_over_samples=lambda array: 3 * array), \
            pytest.raises(ValueError, match="3 share a batch here: choose capacity_per='sequence'"):
        made(Tensor(draw(2, 4, WIDTH)))
