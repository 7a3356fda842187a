"""The FLOPs that operations report are those that NumPy performs, for each gradient by itself."""

import numpy as np
import pytest

from minipar.autograd import Function, Meter, Tensor
from minipar.autograd.ops import attention
from minipar.compress import IntGrid
from minipar.compress.distillation.feature_loss import DISTANCES, distance
from minipar.compress.distillation.soft_targets import soft_cross_entropy
from minipar.compress.pruning.masks import ApplyMask
from minipar.compress.pruning.sparse import SparseLinear
from minipar.compress.quantization.qat import fake_quantize
from minipar.nn import Linear
from minipar.nn.convolution import im2col
from minipar.nn.moe.rows import add_rows, grouped_linear
from minipar.parallel.tensor.vocabulary import PartialEmbedding
from tests.autograd.test_gradcheck import CASES
from tests.support.counting import CountingArray, counting_apply


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setattr(Function, "apply", classmethod(counting_apply))


def reported_and_performed(function, inputs) -> list[tuple]:
    """(operation, phase, FLOPs that it reports, FLOPs that NumPy performed) of each report."""
    found = []
    meter = Meter(lambda: CountingArray.total, lambda before, name, phase, flops, num_bytes:
                  found.append((name, phase, flops, CountingArray.total - before)))
    with meter.running():
        out = function(*inputs)
        if out.requires_grad:
            out.backward(np.ones(out.shape, out.dtype).view(CountingArray))
    return found


def fresh(inputs, wanted) -> list:
    """The inputs once more; only those in `wanted` require a gradient."""
    return [Tensor(x.data.copy(), requires_grad=i in wanted) if isinstance(x, Tensor) else x
            for i, x in enumerate(inputs)]


def check(function, inputs) -> None:
    """Every gradient together, each alone, and none."""
    tensors = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
    for wanted in (tensors, *[[i] for i in tensors], []):
        check_with(function, fresh(inputs, wanted), f"gradients of inputs {wanted}")


def check_with(function, inputs, wanted: str) -> set[str]:
    """The operations that reported the FLOPs they perform."""
    found = reported_and_performed(function, inputs)
    for name, phase, reported, performed in found:
        assert reported == performed, f"{name} {phase}, {wanted}"
    return {name for name, *_ in found}


@pytest.mark.parametrize("number", range(len(CASES)),
                         ids=[f"{op}-{i}" for i, (op, *_) in enumerate(CASES)])
def test_reported_flops_are_performed(number, counting):
    _, function, inputs, _ = CASES[number]
    check(function, inputs)


def test_attention_counts_the_blocks_that_it_computes(counting, monkeypatch):
    monkeypatch.setattr(attention, "QUERIES", 2)
    cases = [(function, inputs) for name, function, inputs, _ in CASES if name == "fused_attention"]
    assert cases
    for function, inputs in cases:
        check(function, inputs)


def other_cases() -> list[tuple]:
    """(function, inputs) of the operations outside of autograd."""
    rng = np.random.default_rng(0)

    def t(*shape):
        return Tensor(rng.standard_normal(shape))

    image, weight, rows = t(2, 5, 6, 3), t(8, 5), np.array([True, False, True, True])
    mask, targets = rng.random((8, 5)) < 0.5, np.array([0, -1, 3, 2])
    return [
        (lambda x: im2col(x, kernel=3, stride=2), [image]),
        (lambda w: ApplyMask.apply(w, mask), [weight]),
        (lambda x: fake_quantize(x, np.array([0.1]), np.array([0.0]), IntGrid(4)), [t(3, 7)]),
        (lambda table: PartialEmbedding.apply(table, Tensor(targets + 1), start=1, vocab_size=6),
         [t(3, 4)]),
        (lambda x: soft_cross_entropy(x, t(4, 5).data, targets, 2.0), [t(4, 5)]),
        (lambda x, w, b: grouped_linear(x, w, b, (2, 0, 3)), [t(5, 2), t(3, 2, 4), t(3, 4)]),
        (lambda x: add_rows(x, np.array([1, 1, 0]), 2), [t(3, 4)]),
        *[(lambda x, kind=kind: distance(x, t(4, 5).data, rows, 3, kind), [t(4, 5)])
          for kind in DISTANCES]]


@pytest.mark.parametrize("number", range(len(other_cases())))
def test_operations_outside_of_autograd_report_what_is_performed(number, counting):
    check(*other_cases()[number])


# A product of integers, whose FLOPs are a formula's; and of inference only, with no backward:
NOT_HERE = {"IntegerProduct", "GatherMatmul"}


def test_a_sparse_product_reports_what_is_performed(counting):
    layer = Linear(8, 5).initialize(0, np.float64)
    layer.weight.data[...] *= np.random.default_rng(0).random((8, 5)) < 0.5
    x = Tensor(np.ones((2, 3, 8)))
    assert check_with(SparseLinear(layer), [x], "inference") == {"GatherMatmul"}


def test_every_metered_operation_of_the_library_is_checked(counting):
    seen = set()
    for function, inputs in [(f, x) for _, f, x, _ in CASES] + other_cases():
        seen |= check_with(function, fresh(inputs, [0]), "gradient of input 0")
    assert {cls.__name__ for cls in subclasses(Function) if cls.metered} - NOT_HERE == seen


def subclasses(cls) -> list[type]:
    """All of them that belong to the library and are no base of others."""
    below = cls.__subclasses__()
    own = [] if below or not cls.__module__.startswith("minipar.") else [cls]
    return own + [found for sub in below for found in subclasses(sub)]
