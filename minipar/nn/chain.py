"""A model as a chain of parts, which can be cut into stages, recomputed and offloaded one by one.

    ids ─▶ embed ─▶ h.0 ─▶ h.1 ─▶ … ─▶ head ─▶ logits          the parts of a GPT

A model does not know its chain: a function outside lists the parts of each kind of model.  Two
parts may use one weight, as embed and head do if they are tied.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from ..autograd import Tensor
from ..backend import Array
from .gpt import GPT
from .module import Module, Part, Sequential
from .parameter import Parameter


@dataclass(frozen=True)
class ChainPart:
    """One step of a model's forward; `modules` are those whose parameters it uses.

    The first part of a model takes an array, each other part the output of the part before.
    `is_block`: one of many alike, not the beginning or end of the model.
    """

    name: str
    apply: Callable[[Any], Tensor]
    modules: Sequence[Module]
    is_block: bool = True

    def __call__(self, x: Any) -> Tensor:
        """The part's output for x."""
        return self.apply(x)

    def parameters(self) -> list[Parameter]:
        """The parameters that the part uses, each once."""
        return list(dict.fromkeys(p for module in self.modules for p in module.parameters()))

    def num_parameters(self) -> int:
        """The number of elements of these parameters, counted globally: the same on every rank."""
        return sum(math.prod(parameter.global_shape) for parameter in self.parameters())


@singledispatch
def chain(model: Module) -> list[ChainPart]:
    """The parts that make up `model.forward`, one after the other.

    For your own model, register a function that lists its parts: @chain.register(MyModel).
    """
    raise TypeError(f"a {type(model).__name__} does not say what its parts are: write a function "
                    "that lists them and register it, @chain.register(...)")


@chain.register
def _(model: GPT) -> list[ChainPart]:
    return [ChainPart("embed", model.embed, model.embed.modules, False),
            *[ChainPart(f"h.{i}", block, [block]) for i, block in enumerate(model.h)],
            ChainPart("head", model.head, model.head.modules, False)]


class Run(Part):
    """Neighbouring modules of a Sequential."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """The output of the last of them."""
        x = x if isinstance(x, Tensor) else Tensor(x)
        for module in self.modules:
            x = module(x)
        return x


@chain.register
def _(model: Sequential) -> list[ChainPart]:
    """Each part is a layer with parameters and the layers without any that follow it."""
    runs: list[list[str]] = []
    for name, module in model._modules.items():
        if not runs or module.parameters() and any(
                model._modules[before].parameters() for before in runs[-1]):
            runs.append([])
        runs[-1].append(name)
    parts = [Run(model, *names) for names in runs]
    return [ChainPart(f"layer {i}", part, part.modules) for i, part in enumerate(parts)]
