"""Optimizers over flat slabs, parameter groups, learning-rate schedules, clipping.

    optimizer.py      the loop over a slab, block by block      sgd.py, adam.py   the updates
    groups.py         weight decay and learning rate by rule    lr_schedule.py    warm-up and cosine
    clip.py           the norm over all ranks, and clipping by it

The constructor's arguments are PyTorch's: lr, momentum, betas, weight_decay.  A name is imported
when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:       # what a type checker and an editor see; `_MODULES` says the same
    from .adam import Adam, AdamW
    from .clip import clip_grad_norm, grad_norm
    from .groups import NO_DECAY_FOR_VECTORS, ParameterGroup
    from .lr_schedule import warmup_cosine
    from .optimizer import Optimizer
    from .sgd import SGD

__all__ = ["NO_DECAY_FOR_VECTORS", "SGD", "Adam", "AdamW", "Optimizer", "ParameterGroup",
           "clip_grad_norm", "grad_norm", "warmup_cosine"]
_MODULES = {
    "NO_DECAY_FOR_VECTORS": "groups", "SGD": "sgd", "Adam": "adam", "AdamW": "adam",
    "Optimizer": "optimizer", "ParameterGroup": "groups", "clip_grad_norm": "clip",
    "grad_norm": "clip", "warmup_cosine": "lr_schedule"}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use (PEP 562)."""
    if name in _MODULES:
        return getattr(import_module(f".{_MODULES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it offers "
                         f"{', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
