"""The sizes of an MLP in a checkpoint, and the activation and dropout between its layers."""

from typing import Any

from ...nn import MLP, Activation, Dropout
from ..config import ModelConfig


def sizes_of_mlp(sizes: list[int], activation: str) -> dict[str, Any]:
    """The sizes of an MLP as a checkpoint has them; the default activation is left out."""
    return {"sizes": sizes} | ({} if activation == ModelConfig.activation
                               else {"activation": activation})


def activation_of(model: MLP) -> str:
    """The activation between the layers.  Raises ValueError if it is not the same between all."""
    kinds = [module.kind for module in model if isinstance(module, Activation)]
    return _same(kinds, model, "activation") or ModelConfig.activation


def dropout_of(model: MLP) -> float:
    """The dropout rate between the layers.  Raises ValueError if it is not the same between all."""
    rates = [module.rate for module in model if isinstance(module, Dropout)]
    return _same(rates, model, "dropout rate") if rates else 0.0


def _same(found: list, model: MLP, what: str) -> Any:
    gaps = len(model.sizes) - 2
    if len(found) != gaps or len(set(found)) > 1:
        raise ValueError(f"the MLPs of minipar's commands have one {what} in all {gaps} places "
                         f"between their layers, not {', '.join(map(str, found)) or 'none'}: "
                         "build MLP(sizes, activation, dropout)")
    return found[0] if found else None
