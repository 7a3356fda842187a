"""Muon in one process against its rule, written out for one matrix; who takes AdamW's steps."""

import numpy as np
import pytest

from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.optim import NO_DECAY_FOR_VECTORS, AdamW, ParameterGroup
from minipar.optim.whole_tensors.muon import Muon
from minipar.optim.whole_tensors.newton_schulz import newton_schulz
from tests.optim.test_optimizers import Parameters, plain_adamw, set_gradients

A, B, C = 3.4445, -4.775, 2.0315


def by_singular_values(u):
    """The same as Newton-Schulz: its polynomial, five times, on the singular values."""
    left, s, right = np.linalg.svd(u / max(np.linalg.norm(u), 1e-7), full_matrices=False)
    for _ in range(5):
        s = A * s + B * s**3 + C * s**5
    return left * s @ right


def plain_muon(w, g, state, lr, momentum, nesterov, adjust, decay):
    b = state["b"] = momentum * state.get("b", 0) + (1 - momentum) * g
    u = (1 - momentum) * g + momentum * b if nesterov else b
    rows, columns = w.shape
    f = 0.2 * max(rows, columns)**0.5 if adjust == "match_rms_adamw" else max(
        1, columns / rows)**0.5
    return w * (1 - lr * decay) - lr * f * by_singular_values(u)


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (6, 6), (1, 4)])
@pytest.mark.parametrize("nesterov, adjust, decay", [
    (True, "match_rms_adamw", 0.1), (False, "original", 0.0), (True, "original", 0.3)])
def test_the_rule_of_one_matrix(shape, nesterov, adjust, decay):
    model = Parameters(shape).initialize(0, np.float64)
    muon = Muon(model.slabs, 0.1, 0.9, nesterov, adjust, weight_decay=decay)
    expected, state = model.p0.data.copy(), {}
    for t in range(1, 6):
        muon.lr = 0.1 / t
        gradient = set_gradients(model, t)["p0"]
        expected = plain_muon(expected, gradient, state, muon.lr, 0.9, nesterov, adjust, decay)
        muon.step()
        np.testing.assert_allclose(model.p0.data, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(muon.state_dict()["momentum/p0"], state["b"], rtol=1e-13)


def test_stacked_matrices_are_orthogonalized_each_for_itself():
    u = np.random.default_rng(0).standard_normal((3, 5, 4)) * [[[1]], [[100]], [[1e-3]]]
    for one, of_stack in zip(u, newton_schulz(u)):
        np.testing.assert_allclose(of_stack, newton_schulz(one), rtol=1e-12)


def test_singular_values_end_near_1_whatever_the_scale_and_zeros_stay_zeros():
    """A gradient below 1e-7 is left small (as in PyTorch): there the scale does matter."""
    u = np.random.default_rng(1).standard_normal((20, 12))
    x = newton_schulz(u)
    values = np.linalg.svd(x, compute_uv=False)
    assert values.min() > 0.65 and values.max() < 1.25 and np.ptp(values) > 0.01
    np.testing.assert_allclose(newton_schulz(1e6 * u), x, rtol=1e-9)
    np.testing.assert_allclose(newton_schulz(u.T), x.T, rtol=1e-12)
    assert not newton_schulz(np.zeros((3, 2))).any()
    assert np.linalg.norm(newton_schulz(1e-12 * u)) < 0.1 < np.linalg.norm(x)


def gpt(**sizes):
    return GPT(GPTConfig(7, 4, 2, 2, 8, **sizes)).initialize(0, np.float64)


def test_embeddings_head_and_vectors_take_the_steps_of_adamw():
    """DeepSpeed 7641 orthogonalized the embeddings."""
    groups = [ParameterGroup(lambda segment: segment.name == "wpe.weight", 0.5, 2.0),
              NO_DECAY_FOR_VECTORS]
    ours, other = gpt(tied=False), gpt(tied=False)
    muon = Muon(ours.slabs, 0.05, groups=groups, weight_decay=0.2)
    adamw = AdamW(other.slabs, 0.05, groups=groups, weight_decay=0.2)
    for t in range(3):
        for model, optimizer in ((ours, muon), (other, adamw)):
            set_gradients(model, t)
            optimizer.step()
    same = {name for (name, p), q in zip(ours.named_parameters(), other.parameters())
            if np.array_equal(p.data, q.data)}
    assert same == {name for name, p in ours.named_parameters()
                    if p.ndim == 1 or name in ("wte.weight", "wpe.weight", "lm_head.weight")}


def test_groups_decay_and_learn_by_their_rules():
    model = Parameters((4, 3), (3, 4)).initialize(0, np.float64)
    muon = Muon(model.slabs, 0.1, 0.9, weight_decay=0.3,
                groups=[ParameterGroup(lambda segment: segment.name == "p1", 0.7, 0.5)])
    before, gradients = model.state_dict(), set_gradients(model, 1)
    muon.step()
    for name, lr, decay in (("p0", 0.1, 0.3), ("p1", 0.05, 0.7)):
        np.testing.assert_allclose(
            model.state_dict()[name], plain_muon(before[name], gradients[name], {}, lr, 0.9, True,
                                                 "match_rms_adamw", decay), rtol=1e-11)


def test_another_rule_says_what_a_matrix_is():
    model = Parameters((4, 3), (5, 2)).initialize(0, np.float64)
    expected, gradients = model.p1.data.copy(), set_gradients(model, 1)
    Muon(model.slabs, 0.1, is_matrix=lambda segment: segment.name == "p0",
         weight_decay=0.1).step()
    np.testing.assert_allclose(model.p1.data, plain_adamw(
        expected, gradients["p1"], {}, 1, 0.1, weight_decay=0.1), rtol=1e-13)


def test_a_matrix_has_one_state_a_vector_two_in_memory_and_in_checkpoints():
    model = gpt()
    hidden = sum(p.size for name, p in model.named_parameters()
                 if p.ndim == 2 and name.startswith("h."))
    with Ledger().recording() as ledger:
        muon = Muon(model.slabs)
    assert ledger.peak_of["optimizer states"] == 8 * (2 * model.num_parameters()
                                                                 - hidden)
    kinds = {key: [name for name in muon.state_dict() if name.endswith(f"/{key}")]
             for key, _ in model.named_parameters()}
    assert len(kinds["h.0.mlp.c_fc.weight"]) == 1 and len(kinds["wte.weight"]) == 2
    assert sum(map(len, kinds.values())) == len(muon.state_dict())


def test_a_stopped_run_goes_on_from_its_states():
    def steps(model, optimizer, numbers):
        for t in numbers:
            set_gradients(model, t)
            optimizer.step()
    one, two = gpt(), gpt()
    through, first = Muon(one.slabs, 0.1), Muon(two.slabs, 0.1)
    steps(one, through, range(4))
    steps(two, first, range(2))
    resumed = Muon(two.slabs, 0.1)
    resumed.load_state_dict(first.state_dict(), first.num_steps)
    steps(two, resumed, range(2, 4))
    np.testing.assert_array_equal(one.slabs[0].data, two.slabs[0].data)
    with pytest.raises(ValueError, match=r"needs momentum/h\.0\.attn\.c_attn\.weight"):
        Muon(two.slabs).load_state_dict(AdamW(two.slabs).state_dict(), 3)


def test_a_matrix_without_gradient_moves_by_its_momentum_alone():
    model = Parameters((3, 2), (2, 2)).initialize(0, np.float64)
    before = model.p0.data.copy()
    set_gradients(model, 1, without={"p0", "p1"})
    Muon(model.slabs, 0.1, weight_decay=0).step()
    np.testing.assert_array_equal(model.p0.data, before)


@pytest.mark.parametrize("option", ["adjust", "exchange"])
def test_unknown_words_are_refused(option):
    with pytest.raises(ValueError, match=f"{option} is .* or .*, not 'mine'"):
        Muon(gpt().slabs, **{option: "mine"})
