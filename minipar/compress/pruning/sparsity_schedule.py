"""Pruning schedules: all at once, gradually, or with rewinding to the start.

    sparsity                                     gradual: fast while many weights matter little,
    s_f │            ╭────────                   slower as the remaining ones matter more
        │       ╭────╯                           s(t) = s_f + (s_i - s_f) (1 - (t - t₀) / n)³
    s_i │──╯                                     Zhu & Gupta 2017, To prune, or not to prune
        └──t₀────────t₀+n──── t

A lottery ticket is a mask found by training, with the initial values of that training.  Rewound to
them, the few remaining weights learn as well as all did.  Frankle & Carbin 2019, The lottery ticket
hypothesis.
"""

from collections.abc import Callable, Mapping

import numpy as np

from ...comm.mesh import DeviceMesh
from ...nn import Module
from .masks import Masks, prunable_weights
from .prune import prune
from .saliency import Scores, magnitude


def cubic_sparsity(step: int, begin: int, length: int, initial: float, final: float) -> float:
    """The pruned share of the weights at a step: `initial` before `begin`, `final` at the end."""
    if length < 1:
        return initial if step < begin else final
    done = min(max((step - begin) / length, 0.0), 1.0)
    return final + (initial - final) * (1 - done) ** 3


class GradualPruning:
    """Prunes a little before every `every`-th step, along `cubic_sparsity`, until its end.

    Call `step` before each training step.  `score` returns scores for the masked parameters, of
    which the share `initial` is pruned already.
    """

    def __init__(self, model: Module, masks: Masks, amount: float, begin: int, length: int,
                 every: int = 1, scope: str = "global", mesh: DeviceMesh | None = None,
                 score: Callable[[dict], Scores] = magnitude, initial: float = 0.0):
        self.model, self.masks, self.scope, self.mesh, self.score = model, masks, scope, mesh, score
        self.amount, self.begin, self.length, self.every = amount, begin, length, max(1, every)
        self.initial, self.finished = initial, False

    def step(self, step: int) -> float:
        """Prune as the schedule says for `step`; return the pruned share of the weights."""
        sparsity = cubic_sparsity(step, self.begin, self.length, self.initial, self.amount)
        is_end = step >= self.begin + self.length
        due = is_end or step >= self.begin and (step - self.begin) % self.every == 0
        if due and not self.finished:
            self.finished = is_end
            self.masks.update(prune(self.model, self.score(self.masks.parameters), sparsity,
                                    self.scope, self.masks, self.mesh))
        return sparsity


def rewind(model: Module, start: Mapping[str, np.ndarray], masks: Masks) -> None:
    """Reset the kept weights to their values in `start`, and the masked ones to 0."""
    model.load_state_dict(dict(start))
    masks.zero_masked()


def lottery_ticket(model: Module, train: Callable[[], None], start: Mapping[str, np.ndarray],
                   rounds: int, share: float = 0.2, scope: str = "global") -> Masks:
    """Train, prune a `share` of the remaining weights, rewind to `start`; `rounds` times.

    `train()` trains the model, with a new optimizer.  The model ends rewound, not trained.
    """
    masks = Masks(model, {name: np.ones(p.shape, bool)
                          for name, p in prunable_weights(model).items()})
    for done in range(rounds):
        train()
        masks.update(prune(model, magnitude(masks.parameters), 1 - (1 - share) ** (done + 1),
                           scope, masks))
        rewind(model, start, masks)
    return masks
