"""Pruned models in checkpoints: the kept values, and one bit for each element.

    0.weight/kept       the kept values, one after the other
    0.weight/mask       their positions: bits, eight in a byte
    0.weight/shape      (in, out)
    0.bias              like all other parameters

The format is lossless.  Of a float32 weight's bytes it saves the pruned share, less 1/32 for the
mask.  States of an optimizer keep their values at the same positions; the mask is stored once.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ...checkpoint_file import Checkpoint, CheckpointError
from ...nn import Module

KIND = "pruned"         # in description["compression"], the list of compression steps
Arrays = dict[str, np.ndarray]


def pack_masked(arrays: Mapping[str, np.ndarray], masks: Mapping[str, np.ndarray]) -> Arrays:
    """`arrays` by parameter name, with masked ones reduced to their kept values."""
    packed = {name: array for name, array in arrays.items() if name not in masks}
    for name, mask in masks.items():
        packed |= {f"{name}/kept": arrays[name][mask], f"{name}/mask": np.packbits(mask),
                   f"{name}/shape": np.array(mask.shape)}
    return packed


def unpack_masked(packed: Mapping[str, np.ndarray]) -> tuple[Arrays, Arrays]:
    """(the whole arrays, with zeros where masked; the masks).

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
    """The mask of `shape` in `bits`.  Raises ValueError for a different number of bits."""
    sizes = shape.tolist()
    if shape.dtype.kind != "i" or shape.ndim != 1 or min(sizes, default=0) < 0 \
            or bits.dtype != np.uint8 or bits.shape != (-(-math.prod(sizes) // 8),):
        raise ValueError(f"a mask {sizes} in {bits.dtype} {bits.shape}")
    return np.unpackbits(bits, count=math.prod(sizes)).reshape(sizes).astype(bool)


def unpack_pruned(model: Module, entry: dict[str, Any], arrays: Arrays) -> None:
    """Replace the kept values in `arrays` by whole arrays with zeros; the model needs no change."""
    whole, _ = unpack_masked(arrays)
    arrays.clear()
    arrays.update(whole)


def fill(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """An array of the shape of `mask`, with `values` where it is True and 0 elsewhere."""
    whole = np.zeros(mask.shape, values.dtype)
    whole[mask] = values.reshape(int(mask.sum()))
    return whole


def compact(saved: Checkpoint, masks: Mapping[str, np.ndarray]) -> Checkpoint:
    """`saved` with only those values of model and optimizer that `masks` (by parameter) keep."""
    states = {key: array[masks[name]] if (name := key.partition("/")[2]) in masks else array
              for key, array in saved.optimizer.items()}
    return replace(saved, model=pack_masked(saved.model, masks), optimizer=states)


def expand(saved: Checkpoint) -> tuple[Checkpoint, Arrays]:
    """The inverse of `compact`: (the whole checkpoint, its masks), {} if there are none.

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
