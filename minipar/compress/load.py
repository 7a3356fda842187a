"""A checkpoint of any kind becomes the model it describes.

    description["compression"] = [{"kind": "quantized", …}, …]     in the order it was done

Each kind registers a function that prepares the plain model, and takes the arrays that it
understands; what is left are plain parameters.  Without the entry all of them are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint, CheckpointError
from ..nn import Module

Arrays = dict[str, np.ndarray]
Prepare = Callable[[Module, dict[str, Any], Arrays], None]
KINDS: dict[str, Prepare] = {}


def register(kind: str) -> Callable[[Prepare], Prepare]:
    """Decorator: the function that prepares a model for steps of this kind."""
    def add(prepare: Prepare) -> Prepare:
        KINDS[kind] = prepare
        return prepare
    return add


def compression_of(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """What was done to the model, step by step; nothing for a plain one."""
    return checkpoint.description.get("compression", [])


def load_model(checkpoint: Checkpoint, model: Module) -> Module:
    """Let `model`, new and initialized, be the one of the checkpoint; return it, changed.

    Raises CheckpointError if the arrays do not fit, or a step is of no known kind.
    """
    arrays = dict(checkpoint.model)
    try:
        for step in compression_of(checkpoint):
            if step.get("kind") not in KINDS:
                raise ValueError(f"a model that was {step.get('kind')}: only {', '.join(KINDS)} "
                                 "are known")
            KINDS[step["kind"]](model, step, arrays)
        model.load_state_dict(arrays)
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"this checkpoint does not fit its own description: {error}") \
            from error
    return model
