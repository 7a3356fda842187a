"""Muon (Jordan et al. 2024): the momentum of a matrix, its singular values made about 1.

    B ← B + (1 - μ)(g - B)              U = g + μ(B - g)    (without Nesterov U = B)
    W ← W(1 - lr·decay) - lr·f·X        X = newton_schulz(U)
                                        f = 0.2 √max(in, out), as long as AdamW's steps;
                                            or √max(1, out/in)

Weights are (in, out) here, (out, in) in PyTorch.  Matrices within a model take these steps, and
stacked matrices (experts) one by one.  Embeddings, the head and vectors take AdamW's steps.

Where a matrix is cut over ranks, its U is brought together first: over tp by a gather, for ZeRO and
FSDP by `exchange` (exchange.py).  So every layout takes the same steps.  Rounding errors grow by a
factor of about 10⁴ on the way: compare layouts in float64.

Liu et al. 2025, arXiv 2502.16982 (f, sharding).  torch.optim.Muon has these rules.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...backend import Array, asarray_like, to_device_of
from ...nn.slab import FlatBuffer, Segment
from ..adam import AdamW
from ..groups import GroupSpan, ParameterGroup, is_hidden_matrix, span_of
from .exchange import EXCHANGES, TensorPart, work_on_whole
from .newton_schulz import FACTORS, newton_schulz
from .runs import Runs


class Muon(AdamW):
    """Muon for the matrices that `is_matrix` picks, AdamW for all else, at one learning rate.

    `adjust` names the rule for f.  `exchange` says how pieces of a matrix meet: "all_to_all" or
    "all_gather".  The `slabs` of the optimizer are runs of the given ones (runs.py).
    """

    def __init__(self, slabs: Sequence[FlatBuffer], lr: float = 1e-3, momentum: float = 0.95,
                 nesterov: bool = True, adjust: str = "match_rms_adamw",
                 exchange: str = "all_to_all",
                 is_matrix: Callable[[Segment], bool] = is_hidden_matrix,
                 betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8,
                 weight_decay: float = 0.1, groups: Sequence[ParameterGroup] = ()):
        for name, value, known in ("adjust", adjust, FACTORS), ("exchange", exchange, EXCHANGES):
            if value not in known:
                raise ValueError(f"{name} is {' or '.join(known)}, not {value!r}")
        self.momentum, self.nesterov, self.factor = momentum, nesterov, FACTORS[adjust]
        self.exchange, self.is_matrix = EXCHANGES[exchange], is_matrix
        super().__init__(Runs(slabs, alone=is_matrix), lr, betas, epsilon, weight_decay, groups)
        self.groups, self.weight_decay = groups, weight_decay

    def states_of(self, slab: Any) -> tuple[str, ...]:
        """One state for a matrix, AdamW's two for anything else."""
        return ("momentum",) if slab.alone else self.state_names

    def update_block(self, spans: Sequence[GroupSpan], p: Array, g: Array, *states: Array) -> None:
        """AdamW's step; for a matrix, which has one state, only its momentum: `step` moves p later.
        """
        if len(states) > 1:
            super().update_block(spans, p, g, *states)
        else:
            (momentum,) = states
            momentum += (1 - self.momentum) * (to_device_of(g, momentum) - momentum)

    def step(self) -> None:
        """Move the parameters along their gradients.  Collective where matrices are cut."""
        super().step()
        runs = {(run.slab, run.segments[0].name): (run, state["momentum"])
                for run, state in zip(self.slabs, self.states) if run.alone}
        results = work_on_whole(
            self.slabs.whole, self.is_matrix, self.orthogonalize, self.exchange,
            {where: self.direction(*here) for where, here in runs.items()})
        for where, result in results.items():
            self.apply(runs[where][0], result)

    def direction(self, run: Any, momentum: Array) -> Array:
        """U, of this rank's part of a matrix."""
        g = to_device_of(run.grad, momentum)
        return g + self.momentum * (momentum - g) if self.nesterov else momentum

    def orthogonalize(self, part: TensorPart, u: Array) -> Array:
        """f·X for U, both flat, this rank's box of them.  Collective over tp, if it cuts boxes."""
        whole = asarray_like(part.parameter.whole(u), u)
        x = self.factor(*whole.shape[-2:]) * newton_schulz(whole)
        return part.box.local_part(x)

    def apply(self, run: Any, step: Array) -> None:
        """W ← W(1 - lr·decay) - lr·step, of this rank's part."""
        span = span_of(run.segments[0], self.groups, self.weight_decay)
        lr = self.lr * span.lr_scale
        p = run.data
        p *= 1 - lr * span.weight_decay
        p -= lr * to_device_of(step, p)

    def state_dict(self) -> dict[str, np.ndarray]:
        """A host copy of every state, as "state/parameter name"; a matrix has "momentum" alone."""
        return {f"{name}/{key}": array for name in ("momentum", *self.state_names)
                for key, array in
                self.slabs.named_state(name, self.states, name == "momentum").items()}
