"""A model as a chain of parts, which can be cut into stages, recomputed and offloaded one by one.

    ids ─▶ embed ─▶ h.0 ─▶ h.1 ─▶ … ─▶ head ─▶ logits          the parts of a GPT

A function outside the models lists the parts of each kind of model.  Two
parts may use one weight, as embed and head do if they are tied.
"""

from functools import singledispatch

from ..autograd import Tensor
from ..backend import Array
from .gpt import GPT
from .module import ChainPart, Module, Part, Sequential


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


class SequentialPart(Part):
    """Neighbouring modules of a Sequential, as one part of its chain."""

    def forward(self, x: Tensor | Array) -> Tensor:
        """The output of the last of them."""
        x = x if isinstance(x, Tensor) else Tensor(x)
        for module in self.modules:
            x = module(x)
        return x


@chain.register
def _(model: Sequential) -> list[ChainPart]:
    """Each part is a layer with parameters and the layers without any that follow it.

    The first part also has the layers without parameters at the beginning.
    """
    runs: list[list[str]] = []
    for name, module in model._modules.items():
        if not runs or module.parameters() and any(
                model._modules[before].parameters() for before in runs[-1]):
            runs.append([])
        runs[-1].append(name)
    parts = [SequentialPart(model, *names) for names in runs]
    return [ChainPart(f"layer {i}", part, part.modules) for i, part in enumerate(parts)]
