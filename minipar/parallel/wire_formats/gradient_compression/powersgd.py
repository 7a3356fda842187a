"""PowerSGD: gradients as products of two thin matrices, which an all-reduce can add.

    M = gradient + e  (n × m)      P = Σ M Q   (n × r) ──▶ orthonormal columns
                                   Q = Σ Mᵀ P  (m × r)
    sum = P Qᵀ                     e = M - sum/p        Q, made orthonormal, begins the next step

This is one step of subspace iteration: Σ M is projected onto the columns of P, sum = P Pᵀ Σ M.  Two
all-reduces add r(n + m) numbers instead of nm.  (Sums of sparse messages grow, these do not.)
The error e is added to the next gradient, and Q, kept from step to step, turns towards the largest
singular vectors.  With r = min(n, m) the sum is exact.  The first Q is drawn, equal on all ranks.

A tensor is sent in full, in the message with the factors P, where r(n + m) · min_rate ≥ nm (biases:
n + 1 numbers are more than n).  In the first `start` steps all tensors are sent in full.  The QR
decomposition of zeros is an identity, so a gradient of zeros leaves no NaN in Q.  Vogels,
Karimireddy & Jaggi 2019, arXiv 1905.13727.
"""

import numpy as np

from ....backend import Array, to_device_of
from ....comm import Communicator
from ....random import generator
from .tensor_wire import Tensors, TensorWire, size_of, sum_together


class PowerSGD(TensorWire):
    """Sends matrices as two factors of `rank` columns.

    Without `feedback` errors are forgotten; without `warm_start` each step draws a new Q.
    """

    def __init__(self, rank: int = 4, start: int = 10, feedback: bool = True,
                 warm_start: bool = True, min_rate: float = 1.0):
        if rank < 1:
            raise ValueError(f"rank={rank}: a factor has at least one column")
        super().__init__()
        self.rank, self.start, self.feedback = rank, start, feedback
        self.warm_start, self.min_rate = warm_start, min_rate

    def rank_of(self, shape: tuple[int, ...]) -> int:
        """The columns of the factors of a tensor; 0 if it is sent in full."""
        n, m = size_of(shape)
        rank = min(n, m, self.rank)
        return rank if rank * (n + m) * self.min_rate < n * m else 0

    def first_q(self, name: str, step: int, size: tuple[int, int]) -> np.ndarray:
        """A random Q for the first step of a tensor, or, without `warm_start`, for each step."""
        return generator(0, "PowerSGD", name, step).standard_normal(size)

    def combine(self, comm: Communicator, tensors: Tensors, step: int) -> tuple[Tensors, Tensors]:
        """Two all-reduces: one of P and of what is sent in full, and one of Q."""
        matrices, qs, full = {}, {}, {}
        for name, tensor in tensors.items():
            rank = self.rank_of(tensor.shape) if step >= self.start else 0
            if not rank:
                full[name] = tensor
                continue
            n, m = size_of(tensor.shape)
            matrices[name] = tensor.reshape(n, m)
            if self.feedback:
                matrices[name] += self.remembered(f"{name}/error", matrices[name])
            q = self.kept.get(f"{name}/q")
            if q is None or q.shape != (m, rank) or not self.warm_start:
                q = self.first_q(name, step, (m, rank)).astype(tensor.dtype)
            qs[name] = orthonormal(to_device_of(q, tensor))
        return self.sum_factors(comm, matrices, qs, full)

    def sum_factors(self, comm: Communicator, matrices: Tensors, qs: Tensors,
                    full: Tensors) -> tuple[Tensors, Tensors]:
        """(sums, what to remember): `matrices` are summed by their orthonormal `qs`, `full` as is.
        """
        sums = sum_together(comm, full | {name: matrices[name] @ q for name, q in qs.items()})
        ps = {name: orthonormal(sums[name]) for name in qs}
        qs = sum_together(comm, {name: matrices[name].T @ p for name, p in ps.items()})
        kept: Tensors = {}
        for name, p in ps.items():
            sums[name] = p @ qs[name].T
            kept[f"{name}/error"] = matrices[name] - sums[name] / comm.size
            kept[f"{name}/q"] = qs[name]
        return sums, kept

    def numbers(self, shapes: dict[str, tuple[int, ...]]) -> tuple[int, int]:
        """The numbers in the two all-reduces of a step, for tensors of these shapes."""
        sizes = [(*size_of(shape), self.rank_of(shape)) for shape in shapes.values()]
        return (sum(rank * n if rank else n * m for n, m, rank in sizes),
                sum(rank * m for _, m, rank in sizes))


def orthonormal(columns: Array) -> Array:
    """r orthonormal columns whose span contains the columns (n, r), r ≤ n."""
    return np.linalg.qr(columns)[0]
