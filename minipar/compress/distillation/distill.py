"""Distillation: a small student is trained to answer, and to think, as a large teacher does.

                 ┌▶ teacher (no gradient) ─▶ logits', hidden', maps' ─┐
    inputs ──────┤                                                    ├─▶ loss ─▶ student, W
                 └▶ student ─▶ logits, W · hidden, maps ──────────────┘

    loss = (1 - α) cross-entropy + α T² KL(p_T ‖ q_T) + β Σ ‖W x - x'‖²/n + γ Σ ‖map - map'‖²/n

A `Distillation` is a model like others, whose loss asks its teacher: whatever strategy trains,
shards or accumulates models does so with this one, projections W included.  All terms are sums over
the targets of this rank, divided by the global number, so they add up over ranks like every loss.
The teacher is a function from inputs to TappedOutputs: on this rank (below) or on other ranks
(`teacher_parallel.py`).

Hinton et al. 2015; hidden layers: Romero et al. 2015; maps: Jiao et al. 2020; an average of the
student's own weights as teacher: Tarvainen & Valpola 2017, Mean teachers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ... import autograd as ag
from ...autograd import Tensor, count_targets, no_grad
from ...backend import Array, asarray_like
from ...nn import GPT, MLP, Dropout, Linear, Module, ModuleList
from .feature_loss import DISTANCES, distance, layer_pairs
from .feature_taps import TappedOutputs, hidden_parts, part_widths, run_with_taps
from .soft_targets import soft_cross_entropy

PROJECTIONS = "projections"
Teacher = Callable[[Array], TappedOutputs]


@dataclass(frozen=True)
class Recipe:
    """What a student is to imitate, and how much each part weighs; made by `make_recipe`."""

    temperature: float = 2.0
    alpha: float = 0.5                              # of soft targets; 1 - alpha of the true ones
    hidden: float = 0.0                             # of hidden layers
    attention: float = 0.0                          # of attention scores
    kind: str = "squared"                           # distance of hidden layers
    pairs: tuple[tuple[int, int], ...] = ()         # layers of the student and of the teacher
    widths: tuple[tuple[int, int], ...] = ()        # of these layers

    def watched(self, of: int) -> tuple[list[int], list[int]]:
        """Layers whose (hidden states, maps) are wanted, `of` the student (0) or the teacher (1).
        """
        layers = [pair[of] for pair in self.pairs]
        return layers if self.hidden else [], layers if self.attention else []


def make_recipe(student: Module, teacher: Module, temperature: float = 2.0, alpha: float = 0.5,
               hidden: float = 0.0, attention: float = 0.0, kind: str = "squared") -> Recipe:
    """How `student` may learn from `teacher`, plain models of which the shapes are enough.

    Raises ValueError, in one line, for models that do not answer the same question, and for weights
    or temperatures that cannot be.
    """
    if not 0 < temperature < np.inf:
        raise ValueError(f"a temperature is a number > 0, not {temperature}")
    if not (0 <= alpha <= 1 and 0 <= hidden < np.inf and 0 <= attention < np.inf):
        raise ValueError(f"expected alpha in [0, 1] and weights >= 0, not alpha {alpha}, hidden "
                         f"{hidden} and attention {attention}")
    if kind not in DISTANCES:
        raise ValueError(f"unknown distance {kind!r}: choose from {', '.join(DISTANCES)}")
    if isinstance(student, GPT) != isinstance(teacher, GPT):
        raise ValueError(f"a {type(student).__name__} cannot learn from a {type(teacher).__name__}:"
                         " take two models of a kind")
    ours, theirs = part_widths(student), part_widths(teacher)
    if ours[-1] != theirs[-1]:
        raise ValueError(f"the student tells {ours[-1]} classes apart, the teacher {theirs[-1]}: "
                         "logits can only be compared of the same ones")
    if isinstance(student, GPT) and student.config.context > teacher.config.context:
        raise ValueError(f"the teacher reads {teacher.config.context} tokens at once, the student "
                         f"{student.config.context}: give the student a shorter context")
    if isinstance(student, MLP) and student.sizes[0] != teacher.sizes[0]:
        raise ValueError(f"the student takes {student.sizes[0]} numbers, the teacher "
                         f"{teacher.sizes[0]}: give both the same inputs")
    if attention and not isinstance(student, GPT):
        raise ValueError("only a GPT has attention scores to match: leave their weight 0")
    at = hidden_parts(student), hidden_parts(teacher)
    if hidden and not (at[0] and at[1]):
        raise ValueError("a model without hidden layers has none to match: leave their weight 0")
    pairs = layer_pairs(len(at[0]), len(at[1]))
    widths = [(ours[at[0][i]], theirs[at[1][j]]) for i, j in pairs]
    return Recipe(temperature, alpha, hidden, attention, kind, tuple(pairs), tuple(widths))


class LocalTeacher:
    """A whole teacher on this rank: inputs → TappedOutputs.  Its dropout is switched off."""

    def __init__(self, model: Module, recipe: Recipe):
        disable_dropout(model)
        self.model, self.layers = model, recipe.watched(1)

    def __call__(self, inputs: Array) -> TappedOutputs:
        """What it makes of the inputs, without a graph."""
        with no_grad():
            return run_with_taps(self.model, inputs, *self.layers)


class AveragedTeacher(LocalTeacher):
    """A teacher that follows its student: each of its weights is a running mean of the student's.

    `model` has the student's sizes and its first numbers.  `decay` = 0 copies, so that calling
    `follow` every 100 steps makes the student's weights of then its teacher.
    """

    def __init__(self, model: Module, recipe: Recipe, decay: float = 0.99):
        if not 0 <= decay < 1:
            raise ValueError(f"a decay is in [0, 1), not {decay}: the part of the mean that stays")
        super().__init__(model, recipe)
        self.decay = decay

    def follow(self, state: dict[str, np.ndarray]) -> None:
        """Take in the student's whole parameters, `strategy.state_dict()`, after a step."""
        for name, parameter in self.model.named_parameters():
            values = asarray_like(state[name].astype(parameter.dtype), parameter.data)
            parameter.data *= self.decay
            parameter.data += (1 - self.decay) * values


def disable_dropout(model: Module) -> None:
    """Switch off a teacher's dropout: it is asked for what it knows while its student trains."""
    for _, module in model.named_modules():
        if isinstance(module, Dropout):
            module.rate = 0.0


class Identity(Module):
    """The projection of a layer that has the teacher's width."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Distillation(Module):
    """`student` with the projections that it needs; its loss is that of imitating `teacher`.

    A hidden layer of the teacher's width is compared as it is, another one through a projection.
    """

    def __init__(self, student: Module, teacher: Teacher, recipe: Recipe):
        super().__init__()
        if isinstance(teacher, Module):
            raise TypeError("a Module in a model would be trained with it: give the teacher as "
                            "LocalTeacher(model, recipe)")
        self.student, self.teacher, self.recipe = student, teacher, recipe
        self.ignore_index = student.ignore_index
        self.projections = ModuleList([
            Identity() if ours == theirs else Linear(ours, theirs, bias=False)
            for ours, theirs in (recipe.widths if recipe.hidden else ())])

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """The student's modules under the names that it has alone, then the projections.

        So it begins with the same numbers, drops out the same elements, and is saved as itself.
        """
        yield prefix, self
        yield from self.student.named_modules(prefix)
        yield from self.projections.named_modules(
            f"{prefix}.{PROJECTIONS}" if prefix else PROJECTIONS)

    def forward(self, inputs: Array) -> Tensor:
        """The student's logits."""
        return self.student.logits(inputs)

    def logits(self, inputs: Array) -> Tensor:
        """Refused to who would make an ordinary loss of them: ask the student."""
        raise ValueError("the loss of distillation is more than a function of the logits, which a "
                         "strategy asked for: train with ddp, zero1, zero2, zero3 or fsdp")

    def loss(self, inputs: Array, targets: Array, num_targets: float | None = None) -> Tensor:
        """See the module; in nats, summed over targets that count and divided by `num_targets`."""
        recipe, taught = self.recipe, self.teacher(inputs)
        own = run_with_taps(self.student, inputs, *recipe.watched(0))
        num_targets = num_targets or count_targets(targets, self.ignore_index) or 1
        counts = targets != self.ignore_index
        terms = []
        if recipe.alpha < 1:
            terms.append((1 - recipe.alpha)
                         * self.student.criterion(own.logits, targets, num_targets))
        if recipe.alpha:
            terms.append(recipe.alpha * soft_cross_entropy(
                own.logits, taught.logits.data, targets, recipe.temperature, num_targets,
                self.ignore_index))
        for project, x, target in zip(self.projections, own.hidden, taught.hidden):
            terms.append(recipe.hidden * distance(project(x), target.data, counts, num_targets,
                                                  recipe.kind))
        for x, target in zip(own.attention, taught.attention):
            terms.append(recipe.attention * map_distance(x, target, counts, num_targets))
        return sum(terms[1:], terms[0])


def map_distance(x: Tensor, target: Tensor, counts: Array, num_targets: float) -> Tensor:
    """How far the scores x (b, heads, t, t) are from a teacher's, of queries that count (b, t).

    The mean squared difference over heads and keys, before the softmax (Jiao et al. 2020, TinyBERT,
    equation 7); what causal attention does not see is 0 in both.  Where student and teacher have
    another number of heads, the means of all heads are compared.
    """
    if x.shape[1] != target.shape[1]:
        x, target = (ag.mean(maps, 1, keepdims=True) for maps in (x, target))
    rows = np.broadcast_to(counts[:, None], x.shape[:-1])
    return distance(x, target.data, rows, num_targets * x.shape[1])


def without_projections(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What of a state by name is the student's: of parameters, or `kind/parameter` of optimizers.
    """
    return {name: array for name, array in state.items()
            if not name.rpartition("/")[2].startswith(f"{PROJECTIONS}.")}
