"""Pruned models in checkpoints: kept values, and a bit for each element.

    0.weight/kept       the kept values, one after the other
    0.weight/mask       which those are: bits, eight in a byte
    0.weight/shape      (in, out)
    0.bias              as all the rest

Exact, and smaller by the share that is gone less 1 bit of 32.  An optimizer's states keep the same
places, without saying again which.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...checkpoint import Checkpoint, CheckpointError
from ...nn import Module
from ..load import Arrays, register

KIND = "pruned"         # in description["compression"], which lists what was done to a model


def pack_masked(arrays: Mapping[str, np.ndarray], masks: Mapping[str, np.ndarray]) -> Arrays:
    """`arrays` by parameter name, of those that have a mask only what it keeps."""
    packed = {name: array for name, array in arrays.items() if name not in masks}
    for name, mask in masks.items():
        packed |= {f"{name}/kept": arrays[name][mask], f"{name}/mask": np.packbits(mask),
                   f"{name}/shape": np.array(mask.shape)}
    return packed


def unpack_masked(packed: Mapping[str, np.ndarray]) -> tuple[Arrays, Arrays]:
    """(the whole arrays, zeros where nothing was kept; the masks).

    Raises ValueError, or KeyError, for arrays that do not fit each other.
    """
    masks = {}
    for key, bits in packed.items():
        name, _, kind = key.rpartition("/")
        if kind == "mask":
            masks[name] = _mask_of(bits, packed[f"{name}/shape"])
    parts = {f"{name}/{kind}" for name in masks for kind in ("kept", "mask", "shape")}
    whole = {name: array for name, array in packed.items() if name not in parts}
    return whole | {name: fill(packed[f"{name}/kept"], mask) for name, mask in masks.items()}, masks


def _mask_of(bits: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """The mask of so many bits.  Raises ValueError if there are others."""
    sizes = shape.tolist()
    if shape.dtype.kind != "i" or shape.ndim != 1 or min(sizes, default=0) < 0 \
            or bits.dtype != np.uint8 or bits.shape != (-(-math.prod(sizes) // 8),):
        raise ValueError(f"a mask {sizes} in {bits.dtype} {bits.shape}")
    return np.unpackbits(bits, count=math.prod(sizes)).reshape(sizes).astype(bool)


@register(KIND)
def unpack_pruned(model: Module, step: dict[str, Any], arrays: Arrays) -> None:
    """Put whole arrays, with zeros, in the place of what was kept of them."""
    whole, _ = unpack_masked(arrays)
    arrays.clear()
    arrays.update(whole)


def fill(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """An array of the shape of `mask`, with `values` where it is True and 0 elsewhere."""
    whole = np.zeros(mask.shape, values.dtype)
    whole[mask] = values.reshape(int(mask.sum()))
    return whole


def compact(saved: Checkpoint, masks: Mapping[str, np.ndarray]) -> Checkpoint:
    """`saved`, of model and optimizer only what `masks`, of whole parameters by name, keeps."""
    states = {key: array[masks[name]] if (name := key.partition("/")[2]) in masks else array
              for key, array in saved.optimizer.items()}
    return replace(saved, model=pack_masked(saved.model, masks), optimizer=states)


def expand(saved: Checkpoint) -> tuple[Checkpoint, Arrays]:
    """What `compact` made it from, and the masks; {} if there are none.

    Raises CheckpointError for arrays that do not fit each other.
    """
    try:
        model, masks = unpack_masked(saved.model)
        states = {key: fill(array, masks[name]) if (name := key.partition("/")[2]) in masks
                  else array for key, array in saved.optimizer.items()}
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(f"the masks of this checkpoint do not fit its values ({error}): "
                              "prune the model again") from error
    return replace(saved, model=model, optimizer=states), masks
