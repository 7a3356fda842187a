"""Pruning schedules: prune gradually while the model trains, not all at once.

    sparsity                                     gradual: fast while many weights matter little,
    s_f │            ╭────────                   slower as the remaining ones matter more
        │       ╭────╯                           s(t) = s_f + (s_i - s_f) (1 - (t - t₀) / n)³
    s_i │──╯                                     Zhu & Gupta 2017, To prune, or not to prune
        └──t₀────────t₀+n──── t
"""

from collections.abc import Callable

from ...comm.mesh import DeviceMesh
from ...nn import Module
from .masks import Masks
from .prune import prune
from .saliency import Scores, magnitude


def cubic_sparsity(step: int, begin: int, length: int, initial: float, final: float) -> float:
    """The pruned share of the weights at a step: `initial` before `begin`, `final` at the end."""
    if length < 1:
        return initial if step < begin else final
    done = min(max((step - begin) / length, 0.0), 1.0)
    return final + (initial - final) * (1 - done) ** 3


class GradualPruning:
    """Prunes a little before every `every`-th step from `begin` on, for `length` steps.

    The pruned share follows `cubic_sparsity` from `initial` to `amount`.  Call `step` before each
    training step.  `score` returns scores for the masked parameters.
    """

    def __init__(self, model: Module, masks: Masks, amount: float, begin: int, length: int,
                 every: int = 1, scope: str = "global", mesh: DeviceMesh | None = None,
                 score: Callable[[dict], Scores] = magnitude, initial: float = 0.0):
        self.model, self.masks, self.scope, self.mesh, self.score = model, masks, scope, mesh, score
        self.amount, self.begin, self.length, self.every = amount, begin, length, max(1, every)
        self.initial, self.finished = initial, False

    def step(self, step: int) -> float:
        """Prune as the schedule says for `step`; return the share that it says."""
        sparsity = cubic_sparsity(step, self.begin, self.length, self.initial, self.amount)
        is_end = step >= self.begin + self.length
        due = is_end or step >= self.begin and (step - self.begin) % self.every == 0
        if due and not self.finished:
            self.finished = is_end
            self.masks.update(prune(self.model, self.score(self.masks.parameters), sparsity,
                                    self.scope, self.masks, self.mesh))
        return sparsity
