"""A checkpoint of any kind becomes the model it describes.

    description["compression"] = [{"kind": "quantized", …}, …]     in the order it was done

Each kind registers a function that prepares the plain model, and takes the arrays that it
understands; what is left are plain parameters.  Without the entry all of them are.
"""

from collections.abc import Callable
from textwrap import shorten
from typing import Any

import numpy as np

from ..checkpoint import Checkpoint, CheckpointError
from ..checkpoint.rules import Table, fault
from ..nn import Module

MOST_SHOWN = 300        # characters of what does not fit: a model has many parameters

Arrays = dict[str, np.ndarray]
Prepare = Callable[[Module, dict[str, Any], Arrays], None]
KINDS: dict[str, tuple[Prepare, Table]] = {}


def register(kind: str, rules: Table | None = None) -> Callable[[Prepare], Prepare]:
    """Decorator: the function that prepares a model for steps of this kind.

    `rules` say what a step has besides its kind (checkpoint/rules.py).
    """
    def add(prepare: Prepare) -> Prepare:
        KINDS[kind] = prepare, rules or {}
        return prepare
    return add


def compression_steps(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """What was done to the model, step by step; nothing for a plain one."""
    return checkpoint.description.get("compression") or []


def load_model(checkpoint: Checkpoint, model: Module) -> Module:
    """Let `model` be the one of the checkpoint; return it, changed.

    A new model needs no initial values: they would be replaced.  Raises CheckpointError if the
    arrays do not fit, or a step is of no known kind.
    """
    arrays = dict(checkpoint.model)
    try:
        if not all(parameter.initialized for parameter in model.parameters()):
            check_size(model, arrays)
            model.to_empty(np.dtype(checkpoint.description.get("dtype", "float32")))
        for i, step in enumerate(compression_steps(checkpoint)):
            if step.get("kind") not in KINDS:
                raise ValueError(f"a model that was {step.get('kind')}: only {', '.join(KINDS)} "
                                 "are known")
            prepare, rules = KINDS[step["kind"]]
            if wrong := fault(step, rules, f"compression[{i}]"):
                raise ValueError(wrong)
            prepare(model, step, arrays)
        model.load_state_dict(arrays)
    except (ValueError, KeyError, TypeError) as error:
        what = shorten(str(error), MOST_SHOWN, placeholder=" …")
        raise CheckpointError(f"this checkpoint does not fit its own description: {what}") \
            from error
    return model


def check_size(model: Module, arrays: Arrays) -> None:
    """Raise ValueError for a model, not made yet, of more numbers than the arrays have bits."""
    num_bits = 8 * sum(array.nbytes for array in arrays.values())
    if model.num_parameters() > num_bits:
        raise ValueError(f"it is of a model of {model.num_parameters():,} parameters, but has "
                         f"{num_bits // 8:,} bytes")
