"""Layers whose weight is packed, such as quantized ones: no Parameter, but codes of few bits.

    codes ─▶ a Parameter without numbers ─▶ cut over ranks like any other ─▶ that part of the codes

So whatever cuts a model over ranks needs to know Parameters only.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from ..nn import Module


class PackedLayer:
    """Base of a layer whose weight is packed."""

    def weight_as_parameter(self) -> AbstractContextManager[None]:
        """Context in which the weight is a Parameter without numbers, and the layer a plain one.

        Then the layer keeps the part of the packed weight to which the Parameter was cut.
        """
        raise TypeError(f"{type(self).__name__} does not say how its weight is cut")


@contextmanager
def weights_as_parameters(model: Module) -> Iterator[None]:
    """Context in which all packed weights of a model are Parameters without numbers."""
    with ExitStack() as stack:
        for _, layer in model.named_modules():
            if isinstance(layer, PackedLayer):
                stack.enter_context(layer.weight_as_parameter())
        yield
