"""Distillation: train a small student to imitate the outputs and features of a large teacher.

                 ┌▶ teacher (no gradient) ─▶ logits', hidden', maps' ─┐
    inputs ──────┤                                                    ├─▶ loss ─▶ student, W
                 └▶ student ─▶ logits, W · hidden, maps ──────────────┘

    loss = (1 - α) cross-entropy + α T² KL(p_T ‖ q_T) + β Σ ‖W x - x'‖²/n + γ Σ ‖map - map'‖²/n

A `Distillation` is a model whose loss calls a teacher.  Any strategy but dp can train it, the
projections W included; dp needs a loss that is a function of the logits.  Each term is a sum over
the targets of this rank, divided by the global number of targets.  So the terms add up over ranks
like every loss.  The teacher is a function from inputs to TappedOutputs: on this rank (below) or on
other ranks (`teacher_parallel.py`).

Hinton et al. 2015; hidden layers: Romero et al. 2015; maps: Jiao et al. 2020; a teacher whose
weights are an average of the student's: Tarvainen & Valpola 2017, Mean teachers.
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
from .soft_targets import check_temperature, soft_cross_entropy

PROJECTIONS = "projections"
Teacher = Callable[[Array], TappedOutputs]


@dataclass(frozen=True)
class Recipe:
    """The terms of the loss and their weights; made by `make_recipe`."""

    temperature: float = 2.0
    alpha: float = 0.5                              # weight of soft targets; labels have 1 - alpha
    hidden: float = 0.0                             # weight of hidden layers
    attention: float = 0.0                          # weight of attention scores
    kind: str = "squared"                           # distance of hidden layers
    pairs: tuple[tuple[int, int], ...] = ()         # (student's layer, teacher's layer)
    widths: tuple[tuple[int, int], ...] = ()        # the widths of these layers

    def watched(self, side: int) -> tuple[list[int], list[int]]:
        """(layers whose hidden states count, layers whose maps count): 0 student, 1 teacher."""
        layers = [pair[side] for pair in self.pairs]
        return layers if self.hidden else [], layers if self.attention else []


def make_recipe(student: Module, teacher: Module, temperature: float = 2.0, alpha: float = 0.5,
                hidden: float = 0.0, attention: float = 0.0, kind: str = "squared") -> Recipe:
    """The recipe by which `student` learns from `teacher`; models without values are enough.

    Raises ValueError for models with different tasks, and for impossible weights or temperatures.
    """
    check_temperature(temperature)
    if not (0 <= alpha <= 1 and 0 <= hidden < np.inf and 0 <= attention < np.inf):
        raise ValueError(f"expected alpha in [0, 1] and weights >= 0, not alpha {alpha}, hidden "
                         f"{hidden} and attention {attention}")
    if kind not in DISTANCES:
        raise ValueError(f"unknown distance {kind!r}: choose from {', '.join(DISTANCES)}")
    if isinstance(student, GPT) != isinstance(teacher, GPT):
        raise ValueError(f"a {type(student).__name__} cannot learn from a {type(teacher).__name__}:"
                         " take two models of a kind")
    student_widths, teacher_widths = part_widths(student), part_widths(teacher)
    if student_widths[-1] != teacher_widths[-1]:
        raise ValueError(f"the student tells {student_widths[-1]} classes apart, the teacher "
                         f"{teacher_widths[-1]}: give both the same classes, so that their logits "
                         "can be compared")
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
    widths = [(student_widths[at[0][i]], teacher_widths[at[1][j]]) for i, j in pairs]
    return Recipe(temperature, alpha, hidden, attention, kind, tuple(pairs), tuple(widths))


class LocalTeacher:
    """A whole teacher on this rank: inputs → TappedOutputs.  Its dropout is switched off."""

    def __init__(self, model: Module, recipe: Recipe):
        disable_dropout(model)
        self.model, self.layers = model, recipe.watched(1)

    def __call__(self, inputs: Array) -> TappedOutputs:
        """The teacher's outputs for `inputs`, without a graph."""
        with no_grad():
            return run_with_taps(self.model, inputs, *self.layers)


class AveragedTeacher(LocalTeacher):
    """A teacher whose weights are running means of the student's weights.

    `model` has the student's sizes and initial values.  With `decay` = 0 the mean is a copy: if
    `follow` is called every 100 steps, the student learns from its own weights of the last call.
    """

    def __init__(self, model: Module, recipe: Recipe, decay: float = 0.99):
        if not 0 <= decay < 1:
            raise ValueError(f"a decay is in [0, 1), not {decay}: the share of the mean that stays")
        super().__init__(model, recipe)
        self.decay = decay

    def follow(self, state: dict[str, np.ndarray]) -> None:
        """Update the means with the student's whole parameters, `strategy.state_dict()`."""
        for name, parameter in self.model.named_parameters():
            values = asarray_like(state[name].astype(parameter.dtype), parameter.data)
            parameter.data *= self.decay
            parameter.data += (1 - self.decay) * values


def disable_dropout(model: Module) -> None:
    """Switch off the dropout of a teacher, which runs while its student trains."""
    for _, module in model.named_modules():
        if isinstance(module, Dropout):
            module.rate = 0.0


class Identity(Module):
    """The projection of a layer that has the teacher's width already."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Distillation(Module):
    """A model of `student` and its projections; the loss compares the student with `teacher`.

    A hidden layer of the teacher's width is compared directly, others through a projection.
    """

    def __init__(self, student: Module, teacher: Teacher, recipe: Recipe):
        super().__init__()
        if isinstance(teacher, Module):
            raise TypeError("a Module in a model would be trained with it: give the teacher as "
                            "LocalTeacher(model, recipe)")
        self.student, self.teacher, self.recipe = student, teacher, recipe
        self.ignore_index = student.ignore_index
        self.projections = ModuleList([
            Identity() if width == target else Linear(width, target, bias=False)
            for width, target in (recipe.widths if recipe.hidden else ())])

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """The student's modules under their own names, then the projections.

        So the student gets the same initial values and dropout as when it is trained alone, and is
        saved under the same names.
        """
        yield prefix, self
        yield from self.student.named_modules(prefix)
        yield from self.projections.named_modules(
            f"{prefix}.{PROJECTIONS}" if prefix else PROJECTIONS)

    def forward(self, inputs: Array) -> Tensor:
        """The student's logits."""
        return self.student.logits(inputs)

    def logits(self, inputs: Array) -> Tensor:
        """Raise ValueError: the loss is not a function of the logits.  Use the student's logits."""
        raise ValueError("the loss of distillation is more than a function of the logits, which a "
                         "strategy asked for: train with any strategy but dp")

    def loss(self, inputs: Array, targets: Array, loss_divisor: float | None = None) -> Tensor:
        """The weighted sum of the terms, divided by `loss_divisor`, by default the targets here."""
        recipe, taught = self.recipe, self.teacher(inputs)
        own = run_with_taps(self.student, inputs, *recipe.watched(0))
        loss_divisor = loss_divisor or count_targets(targets, self.ignore_index) or 1
        counts = targets != self.ignore_index
        terms = []
        if recipe.alpha < 1:
            terms.append((1 - recipe.alpha)
                         * self.student.criterion(own.logits, targets, loss_divisor))
        if recipe.alpha:
            terms.append(recipe.alpha * soft_cross_entropy(
                own.logits, taught.logits.data, targets, recipe.temperature, loss_divisor,
                self.ignore_index))
        for project, x, target in zip(self.projections, own.hidden, taught.hidden):
            terms.append(recipe.hidden * distance(project(x), target.data, counts, loss_divisor,
                                                  recipe.kind))
        for x, target in zip(own.attention, taught.attention):
            terms.append(recipe.attention * map_distance(x, target, counts, loss_divisor))
        return sum(terms[1:], terms[0])


def map_distance(x: Tensor, target: Tensor, counts: Array, loss_divisor: float) -> Tensor:
    """The distance of scores x (b, heads, t, t) from a teacher's, over queries that count (b, t).

    It is the mean squared difference over heads and keys, before the softmax (Jiao et al. 2020,
    TinyBERT, equation 7); masked scores are 0 in both.  If student and teacher have different
    numbers of heads, the means over the heads are compared.
    """
    if x.shape[1] != target.shape[1]:
        x, target = (ag.mean(maps, 1, keepdims=True) for maps in (x, target))
    rows = np.broadcast_to(counts[:, None], x.shape[:-1])
    return distance(x, target.data, rows, loss_divisor * x.shape[1])


def without_projections(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The entries of a state that are not of projections.

    Keys are names of parameters, or "kind/parameter" in the state of an optimizer.
    """
    return {name: array for name, array in state.items()
            if not name.rpartition("/")[2].startswith(f"{PROJECTIONS}.")}
