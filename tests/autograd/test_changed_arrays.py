"""Arrays that change between forward and backward: the right gradient, or a refusal.

Arrays of the caller that need no gradient may be refilled: backward uses what forward saw.
Parameters that an optimizer has changed since forward are refused.
"""

import numpy as np
import pytest

import minipar.autograd as ag
from minipar import SGD, Adam, AdamW
from minipar.autograd import Tensor
from minipar.backend.mapped_file import MappedFile
from minipar.compress.pruning.masks import Masks
from minipar.memory.ledger import Ledger
from minipar.memory.remat.recompute import checkpoint
from minipar.nn import MLP, Linear
from tests.autograd.test_lifetimes import t

rng = np.random.default_rng(0)
COS, SIN = np.cos(rng.random((1, 3, 2))), np.sin(rng.random((1, 3, 2)))
# name: (function of a Tensor and a buffer, the buffer, what it is refilled with, shape of x)
USES = {
    "linear": (lambda x, b: ag.linear(Tensor(b), x), rng.random((2, 3)), 0, (3, 4)),
    "linear, weight": (lambda x, b: ag.linear(x, Tensor(b)), rng.random((4, 2)), 0, (3, 4)),
    "matmul": (lambda x, b: Tensor(b) @ x, rng.random((2, 3)), 0, (3, 4)),
    "array times": (lambda x, b: b * x, rng.random(4), 0, (3, 4)),
    "divided": (lambda x, b: x / b, rng.random(4) + 1, 5, (3, 4)),
    "dividend": (lambda x, b: b / x, rng.random(4), 5, (3, 4)),
    "where": (lambda x, b: ag.where(b, x, 0.0), rng.random((3, 4)) < 0.5, True, (3, 4)),
    "dropout": (lambda x, b: ag.dropout(x, b, 0.5), rng.random((3, 4)) < 0.5, True, (3, 4)),
    "embedding": (lambda x, b: ag.embedding(x, b), np.array([1, 1, 0]), 2, (3, 4)),
    "index": (lambda x, b: x[b, 1], np.array([1, 1, 0]), 2, (3, 4)),
    "mask": (lambda x, b: x[b], np.array([True, False, True]), [False, True, True], (3, 4)),
    "cosines": (lambda x, b: ag.rotary(x, b, SIN, 1), COS.copy(), 0, (2, 3, 4)),
    "sines": (lambda x, b: ag.rotary(x, COS, b, 1), SIN.copy(), 0, (2, 3, 4)),
    "attention mask": (lambda x, b: ag.fused_attention(x, 2, keep=b, rate=0.5),
                       rng.random((2, 2, 3, 3)) < 0.5, True, (2, 3, 12)),
    "targets": (lambda x, b: ag.cross_entropy(x, b), np.array([1, 3, 0]), 2, (3, 4)),
    "recomputed": (lambda x, b: checkpoint(lambda y, z: ag.tanh(ag.linear(y, x)), Tensor(b), 1),
                   rng.random((2, 3)), 0, (3, 4)),
    "recomputed array": (lambda x, b: checkpoint(lambda y: ag.tanh(ag.linear(Tensor(y), x)), b),
                         rng.random((2, 3)), 0, (3, 4)),
}


def gradient(use, buffer, shape, change=lambda buffer: None):
    x = t(*shape)
    y = use(x, buffer)
    change(buffer)
    y.backward(np.random.default_rng(1).standard_normal(y.shape))
    return x.grad


def views(values):
    """The values in arrays of several kinds: (the array, the writable array behind it)."""
    rows = np.empty((len(values) + 2, *values.shape[1:]), values.dtype)
    mapped = MappedFile().empty(values.shape, values.dtype)
    for array, behind in [((own := values.copy()), own), (rows[1:-1], rows), (mapped, mapped),
                          ((turned := values.T.copy()).T, turned)]:
        array[...] = values
        yield array, behind


@pytest.mark.parametrize("name", USES)
def test_a_buffer_that_is_refilled_before_backward(name):
    use, values, new, shape = USES[name]
    right = gradient(use, values.copy(), shape)
    for array, behind in views(values):
        def refill(array, behind=behind):
            behind[...] = new if np.ndim(new) == 0 else np.resize(new, behind.shape)
        np.testing.assert_array_equal(gradient(use, array, shape, refill), right)
        assert array.flags.writeable and not np.array_equal(array, values)
        assert not np.array_equal(gradient(use, array, shape), right)      # the next batch


def test_read_only_arrays_are_kept_without_a_copy():
    x, weight = np.ones((4, 3)), t(3, 2)
    x.flags.writeable = False
    for given, num_bytes in ((x, 0), (x.copy(), x.nbytes)):
        ledger = Ledger()
        ledger.add("activations", x)
        before = ledger.live
        with ledger.recording():
            y = ag.linear(Tensor(given), weight)
        assert ledger.live - before == num_bytes
        del y


def two_losses(model):
    x, labels = np.random.default_rng(2).standard_normal((5, 4)), np.array([0, 1, 2, 0, 1])
    return model.loss(x, labels), model.loss(x[::-1], labels)


def model_of(seed=0):
    return MLP([4, 6, 3]).initialize(seed, np.float64)


def step_by_hand(model):
    for parameter in model.parameters():
        parameter.data -= 0.1 * parameter.grad


def changes():
    """name: a change of all parameters."""
    for make in (SGD, Adam, AdamW):
        yield make.__name__, lambda model, make=make: make(model.slabs, lr=0.1).step()
    yield "by hand", step_by_hand
    yield "load_state_dict", lambda model: model.load_state_dict(model_of(1).state_dict())
    yield "zero_masked", lambda model: Masks(
        model, {"2.weight": np.eye(6, 3) > 0, "0.weight": np.eye(4, 6) > 0}).zero_masked()


@pytest.mark.parametrize("name, change", list(changes()))
def test_parameters_that_changed_are_refused(name, change):
    model = model_of()
    first, second = two_losses(model)
    first.backward()
    grads = {name: p.grad.copy() for name, p in model.named_parameters()}
    change(model)
    with pytest.raises(RuntimeError, match="^a parameter that Linear used has changed since "
                                           "this forward.*call backward.. of all") as error:
        second.backward()
    assert "\n" not in str(error.value)
    for name, p in model.named_parameters():        # it refused before it added anything
        np.testing.assert_array_equal(p.grad, grads[name])
    two_losses(model)[1].backward()                 # a new forward is fine


def test_a_loss_that_does_not_use_what_changed():
    changed, kept = model_of(), model_of(1)
    x, labels = np.ones((2, 4)), np.array([0, 1])
    of_changed, of_kept = changed.loss(x, labels), kept.loss(x, labels)
    of_changed.backward()
    AdamW(changed.slabs).step()
    of_kept.backward()
    assert all(p.grad is not None for p in kept.parameters())


@pytest.mark.parametrize("use", [lambda w: w, lambda w: w.T.reshape(3, 3).T, lambda w: w * 1.0,
                                 lambda w: w.astype(np.float32).astype(np.float64)])
def test_a_weight_behind_other_operations(use):
    layer = Linear(3, 3).initialize(0, np.float64)
    loss = (ag.linear(t(2, 3), use(layer.weight)) ** 2).sum()
    SGD(layer.slabs, lr=0.1).step()
    with pytest.raises(RuntimeError, match="has changed since this forward"):
        loss.backward()


def test_recomputation_does_not_use_new_parameters():
    """The bias of a layer is not saved, but a recomputation would use it."""
    model = Linear(3, 3).initialize(0, np.float64)
    loss = checkpoint(lambda x: ag.tanh(model(x)), t(2, 3)).sum()
    SGD(model.slabs, lr=0.1).step()
    with pytest.raises(RuntimeError, match="has changed since this forward"):
        loss.backward()
