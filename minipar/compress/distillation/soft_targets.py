"""Soft targets: the student learns the teacher's whole distribution, not only the right class.

    teacher's logits z'   ─▶ p = softmax(z'/T)     T = 1   ▁ ▁ █ ▁     nearly one-hot
    student's logits z    ─▶ q = softmax(z /T)     T = 4   ▂ ▁ █ ▄     "a 2 that looks like a 3"

    loss = (1 - α) cross-entropy  +  α T² Σ p ln(p / q) / targets
    dz   =      …                 +  α T (q - p) / targets

A higher temperature T shows which other classes the teacher finds possible.  If logits are small
compared with T, q - p shrinks as 1/T.  With the factor T² the gradient is T (q - p), which then
stays about the same, so T can be tuned without tuning α again.  Hinton, Vinyals & Dean 2015,
Distilling the knowledge in a neural network, section 2.  (PyTorch's kl_div with "mean" also divides
by the number of classes.)
"""

import math

import numpy as np

from ...autograd import IGNORE_INDEX, Function, Tensor, count_targets
from ...autograd.ops.cross_entropy import scaled
from ...backend import Array, row_sum


def log_softmax(x: Array) -> Array:
    """x - max - ln Σ exp(x - max) over the last axis."""
    x = x - np.max(x, axis=-1, keepdims=True)
    x -= np.log(row_sum(np.exp(x)))
    return x


class SoftTargets(Function):
    """y = T² Σ p ln(p / q) / loss_divisor over the rows whose target counts.

    Saves the gradient T (q - p) / loss_divisor for backward, as CrossEntropy does.
    """

    expects = "logits and a teacher's logits (..., classes) and integer targets (...)"

    @staticmethod
    def flops(ctx, out, logits, teacher, targets):
        return 19 * logits.size + 2 * targets.size + 1, [logits.size, 0, 0]

    @staticmethod
    def forward(ctx, logits, teacher, targets, temperature, loss_divisor, ignore_index):
        if teacher.shape != logits.shape or targets.shape != logits.shape[:-1]:
            raise ValueError("student and teacher need the same classes, and each row a target")
        counts = (targets != ignore_index)[..., None]
        log_q, log_p = (log_softmax(np.where(counts, z, 0) / temperature)   # other rows may be NaN
                        for z in (logits, teacher))
        p, q = np.exp(log_p), np.exp(log_q)
        loss = np.sum(p * (log_p - log_q)) * (temperature**2 / loss_divisor)
        q -= p
        q *= temperature / loss_divisor
        ctx.save(q)
        return loss

    @staticmethod
    def backward(ctx, g):
        (dlogits,) = ctx.saved
        return [lambda: scaled(dlogits(), g), None, None]


def check_temperature(temperature: float) -> None:
    """Raise ValueError for a temperature that is not positive."""
    if not 0 < temperature < math.inf:
        raise ValueError(f"a temperature is a number > 0, not {temperature}: 1 leaves logits as "
                         "they are, 2 to 5 soften them")


def soft_cross_entropy(logits: Tensor, teacher: Array, targets: Array, temperature: float,
                       loss_divisor: float | None = None,
                       ignore_index: int = IGNORE_INDEX) -> Tensor:
    """T² times the KL divergence of the softened student from the teacher, in nats.

    `logits` (..., classes) are the student's, `teacher` an array of the same shape.  Rows whose
    target (...) is `ignore_index` do not count.  The sum is divided by `loss_divisor`, the *global*
    number of rows that count, as in `autograd.cross_entropy`.  Raises ValueError for a temperature
    that is not positive.
    """
    check_temperature(temperature)
    if loss_divisor is None:
        loss_divisor = count_targets(targets, ignore_index) or 1
    return SoftTargets.apply(logits, teacher.astype(logits.dtype), targets,
                             loss_divisor=loss_divisor, temperature=float(temperature),
                             ignore_index=ignore_index)
