"""Load a checkpoint of any kind: plain, pruned, quantized, or several in order.

    description["compression"] = [{"kind": "quantized", …}, …]     in the order of compression

Each kind of step has a function that undoes its packing.  "quantized" moves its arrays out of the
checkpoint and into layers of the model; "pruned" replaces packed arrays by whole ones.  The arrays
that remain are plain parameters.  Without the entry "compression" all arrays are plain parameters.
"""

from collections.abc import Callable
from textwrap import shorten
from typing import Any

import numpy as np

from ..checkpoint_file import Checkpoint, CheckpointError
from ..checkpoint_file.description_rules import Table, fault
from ..nn import Module
from .pruning.serialization import KIND as PRUNED
from .pruning.serialization import Arrays, unpack_pruned
from .quantization.serialization import KIND as QUANTIZED
from .quantization.serialization import RULES, unpack_quantized

MOST_SHOWN = 300        # characters of an error about many parameters

# By kind of step: the function, and the rules for the other entries of the step.
Prepare = Callable[[Module, dict[str, Any], Arrays], None]
COMPRESSIONS: dict[str, tuple[Prepare, Table]] = {
    PRUNED: (unpack_pruned, {}), QUANTIZED: (unpack_quantized, RULES)}


def compression_steps(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The compression steps of a checkpoint, in order; [] for a plain model."""
    return checkpoint.description.get("compression") or []


def load_model(checkpoint: Checkpoint, model: Module) -> Module:
    """Turn `model` into the checkpoint's model, and return it.

    A new model needs no initial values.  Raises CheckpointError if the arrays do not fit, or for a
    step that is of an unknown kind or breaks a rule.
    """
    arrays = dict(checkpoint.model)
    try:
        if not all(parameter.initialized for parameter in model.parameters()):
            check_size(model, arrays)
            model.to_empty(np.dtype(checkpoint.description.get("dtype", "float32")))
        for i, step in enumerate(compression_steps(checkpoint)):
            if step.get("kind") not in COMPRESSIONS:
                raise ValueError(f"unknown kind of compression {step.get('kind')}: only "
                                 f"{', '.join(COMPRESSIONS)} are known")
            prepare, rules = COMPRESSIONS[step["kind"]]
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
    """Raise ValueError, before allocating, if the arrays have less than a bit for each parameter.
    """
    num_bits = 8 * sum(array.nbytes for array in arrays.values())
    if model.num_parameters() > num_bits:
        raise ValueError(f"it describes a model of {model.num_parameters():,} parameters, but has "
                         f"{num_bits // 8:,} bytes")
