"""Cross-entropy: the loss of classifiers and language models.

`cross_entropy_by_autograd` is the formula.  `CrossEntropy` is the same in one operation.  Its loss
is finite for logits below half of the largest number, where the formula takes the logarithm of 0.
"""

import numpy as np

from ...backend import Array, as_rows, check_ids, is_host, keep_where, row_sum
from ..function import Function
from ..tensor import Tensor
from .activations import softmax
from .elementwise import log

IGNORE_INDEX = -100     # the target that does not count, as in PyTorch


def cross_entropy_by_autograd(logits: Tensor, targets: Array, loss_divisor: float,
                              ignore_index: int = IGNORE_INDEX) -> Tensor:
    """Σ -ln softmax(logits)[target] / loss_divisor over the rows whose target counts."""
    counts = targets != ignore_index
    return -log(softmax(logits))[counts, targets[counts]].sum() / loss_divisor


class CrossEntropy(Function):
    """`cross_entropy_by_autograd` in one operation.

    Saves dlogits = (softmax - one-hot) / loss_divisor itself, in place of the logits.
    """

    expects = "logits (..., classes) and integer targets (...)"

    def flops(ctx, out, logits, targets):
        n, num_rows, has_gradient = logits.size, targets.size, ctx.needs_grad[0]
        return (4 + has_gradient) * n + (4 + 4 * has_gradient) * num_rows + 1, [n, 0]

    def forward(ctx, logits, targets, loss_divisor, ignore_index):
        if targets.shape != logits.shape[:-1] or targets.dtype.kind not in "iu":
            raise ValueError("targets are one class number for each row of logits")
        d, targets = as_rows(logits), targets.reshape(-1)
        counts = targets != ignore_index
        if not (is_host(counts) and counts.all()):
            d = np.where(counts[:, None], d, 0)     # ignored rows may hold anything, NaN too
            targets = np.where(counts, targets, 0)
        check_ids(targets, d.shape[1], "targets")
        at_targets = np.arange(targets.size, like=targets), targets     # one element of each row
        d = d - d.max(axis=-1, keepdims=True)
        target_logits = d[at_targets]
        np.exp(d, out=d)
        total = row_sum(d)
        loss = np.sum((np.log(total[:, 0]) - target_logits) * counts) / loss_divisor
        if ctx.needs_grad[0]:
            d *= counts[:, None] / (total * loss_divisor)
            d[at_targets] -= counts / loss_divisor
            ctx.save(d.reshape(logits.shape))
        return loss

    def backward(ctx, g):
        (dlogits,) = ctx.saved
        return [lambda: scaled(dlogits(), g), None]


def scaled(d: Array, g: Array) -> Array:
    """d times g, the gradient of a loss (one number); 0 where d is 0, as in an ignored row.

    d · g alone would be NaN there for an infinite g.
    """
    return d * g if is_host(g) and np.isfinite(g) else keep_where(d != 0, d * g)


def count_targets(targets: Array, ignore_index: int = IGNORE_INDEX) -> int:
    """The number of targets that count: those that are not `ignore_index`."""
    return int(np.sum(targets != ignore_index))


def cross_entropy(logits: Tensor, targets: Array, loss_divisor: float | None = None,
                  ignore_index: int = IGNORE_INDEX) -> Tensor:
    """Mean negative log-likelihood in nats of targets (...) under logits (..., classes).

    Targets equal to `ignore_index` do not count.  The sum is divided by `loss_divisor`, by default
    the number of targets in this call that count (at least 1).  In data-parallel training
    `loss_divisor` is the *global* number: the losses and gradients of all ranks then add up to
    those of the whole batch.
    """
    if loss_divisor is None:
        loss_divisor = count_targets(targets, ignore_index) or 1
    return CrossEntropy.apply(logits, targets, loss_divisor=float(loss_divisor),
                              ignore_index=ignore_index)
