"""Feature losses: compare a student's hidden layers, or attention scores, with a teacher's.

    teacher   embed ─ 0 ─ 1 ─ 2 ─ 3 ─ head        layer m of M ↔ the last layer of its share of N
                          ▲       ▲
    student   embed ───── 0 ───── 1 ─ head        ‖W x - x'‖² / n at every position that counts

W is a learned projection, needed where student and teacher differ in width; it is dropped after the
training.  Romero et al. 2015, FitNets (hints); Jiao et al. 2020, TinyBERT, equations 6 to 8.
"""

import numpy as np

from ...autograd import Function, Tensor
from ...autograd.ops.cross_entropy import scaled
from ...backend import Array, row_dot

SMALLEST = 1e-8         # the least length of a vector in a denominator


def layer_pairs(num_student: int, num_teacher: int) -> list[tuple[int, int]]:
    """The pairs (student's layer, teacher's layer) to compare, counted from 0.

    The teacher's layers are divided evenly, and the last layer of each share is compared.  Counted
    from 1, that is layer i of L with layer ⌈i L'/L⌉ of L'.  If the student has more layers, several
    share a partner.
    """
    return [(m - 1, -(-m * num_teacher // num_student) - 1) for m in range(1, num_student + 1)]


class SquaredError(Function):
    """y = Σ ‖x - target‖² / n / loss_divisor over the rows that count; a row has n numbers."""

    expects = "x and target (..., n), and which rows count (...)"

    @staticmethod
    def flops(ctx, out, x, target, counts):
        return 4 * x.size + counts.size + 1, [x.size, 0, 0]

    @staticmethod
    def forward(ctx, x, target, counts, loss_divisor):
        if x.shape != target.shape or counts.shape != x.shape[:-1]:
            raise ValueError("shapes do not fit together")
        d = np.where(counts[..., None], x - target, 0)
        scale = 1 / (x.shape[-1] * loss_divisor)
        loss = np.sum(row_dot(d, d)) * scale
        d *= 2 * scale
        ctx.save(d)
        return loss

    @staticmethod
    def backward(ctx, g):
        (dx,) = ctx.saved
        return [lambda: scaled(dx(), g), None, None]


class CosineDistance(Function):
    """y = Σ (1 - cos) / loss_divisor over the rows that count;  dx = (cos u - v) / ‖x‖.

    u and v are x and the target scaled to length 1; the length of x does not matter.
    """

    expects = "x and target (..., n), and which rows count (...)"

    @staticmethod
    def flops(ctx, out, x, target, counts):
        return 11 * x.size + 9 * counts.size + 1, [x.size, 0, 0]

    @staticmethod
    def forward(ctx, x, target, counts, loss_divisor):
        if x.shape != target.shape or counts.shape != x.shape[:-1]:
            raise ValueError("shapes do not fit together")
        counts = counts[..., None]
        x, target = np.where(counts, x, 1), np.where(counts, target, 1)
        length = np.maximum(np.sqrt(row_dot(x, x)), SMALLEST)
        u = x / length
        v = target / np.maximum(np.sqrt(row_dot(target, target)), SMALLEST)
        cosine = row_dot(u, v)
        u *= cosine
        u -= v
        u *= counts / (length * loss_divisor)
        ctx.save(u)
        return np.sum((1 - cosine) * counts) / loss_divisor

    @staticmethod
    def backward(ctx, g):
        (dx,) = ctx.saved
        return [lambda: scaled(dx(), g), None, None]


DISTANCES = {"squared": SquaredError, "cosine": CosineDistance}


def distance(x: Tensor, target: Array, counts: Array, loss_divisor: float,
             kind: str = "squared") -> Tensor:
    """The distance of rows x (..., n) from a teacher's rows, over those that count (...).

    The sum is divided by `loss_divisor`, the *global* number of rows that count.  The distance of a
    row is its mean squared difference (kind "squared"), or 1 - the cosine of the angle ("cosine").
    """
    return DISTANCES[kind].apply(x, target.astype(x.dtype), counts,
                                 loss_divisor=float(loss_divisor))
