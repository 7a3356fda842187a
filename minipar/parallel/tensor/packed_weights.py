"""Layers whose weight is packed, such as quantized ones: no Parameter, but codes of few bits.

    codes ─▶ a Parameter without numbers ─▶ cut over ranks like any other ─▶ that part of the codes

So whatever cuts a model over ranks needs to know Parameters only.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...nn import Module


class PackedLayer:
    """Base of a layer whose weight is packed."""

    parts: dict[type, type]         # by the class of a cut layer: its counterpart with codes

    @abstractmethod
    def show_weight(self) -> None:
        """Turn the weight into a Parameter without numbers, which may then be cut."""

    @abstractmethod
    def take_part(self) -> None:
        """Drop this Parameter again, and keep the codes of the part to which it was cut."""


def kind_like(layer: Module, kind: Any) -> Any:
    """`kind`, or its counterpart with a packed weight if the weight of `layer` is packed."""
    return layer.parts[kind] if isinstance(layer, PackedLayer) else kind


@contextmanager
def weights_as_parameters(model: Module) -> Iterator[None]:
    """Context in which all packed weights of a model are Parameters without numbers."""
    for layer in packed_layers(model):
        layer.show_weight()
    try:
        yield
    finally:
        for layer in packed_layers(model):
            layer.take_part()


def packed_layers(model: Module) -> list[PackedLayer]:
    """The layers of a model whose weight is packed."""
    return [layer for _, layer in model.named_modules() if isinstance(layer, PackedLayer)]
