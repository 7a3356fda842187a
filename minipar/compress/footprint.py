"""Footprint of a model: bytes, FLOPs and seconds, which are three different costs.

    bytes      of the arrays to store
    FLOPs      of one forward, as the operations report them
    seconds    of one forward: the minimum of several, since other work on the machine can only add
               time; the models take turns, so that such work meets them alike

Fewer bytes are not always fewer FLOPs, nor are fewer FLOPs always fewer seconds.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..autograd import Meter, no_grad
from ..backend import Array
from ..nn import Module
from .pruning.masks import prunable_weights
from .pruning.shrink import without_masks
from .pruning.sparse import SparseLinear, bitmap_bytes, replace_linear_layers
from .pruning.two_of_four import TwoOfFourLinear


class Footprint(NamedTuple):
    """The costs of one model."""

    num_bytes: int
    flops: int
    seconds: float


class ModelVersion(NamedTuple):
    """One form of a model: `num_bytes` to store it, and the `model` to run."""

    num_bytes: int
    model: Module


def model_bytes(model: Module, masks: Mapping[str, Array] | None = None) -> int:
    """The bytes of all parameters; of a masked one, its kept values and the bits of its mask."""
    masks = masks or {}
    return sum(bitmap_bytes(masks[name], p.dtype.itemsize) if name in masks else p.data.nbytes
               for name, p in model.named_parameters())


def sparse_versions(model: Module, masks: Mapping[str, Array],
                    two_of_four: bool = False) -> dict[str, ModelVersion]:
    """A masked model in several forms, by name: dense with zeros, and with sparse storage."""
    dense = without_masks(model)
    rest = model_bytes(dense) - sum(p.data.nbytes for p in prunable_weights(dense).values())
    found = {"zeros, dense": ModelVersion(model_bytes(model, masks), dense)}
    kinds: dict[str, type] = {"kept only, gathered": SparseLinear}
    if two_of_four:
        kinds["compressed"] = TwoOfFourLinear
    for name, kind in kinds.items():
        made = replace_linear_layers(without_masks(model), kind)
        held = sum(m.nbytes for _, m in made.named_modules() if isinstance(m, kind))
        found[name] = ModelVersion(held + rest, made)
    return found


def measure(versions: Mapping[str, ModelVersion], inputs: Array, repeats: int = 15,
            clock: Callable[[], float] = time.perf_counter) -> dict[str, Footprint]:
    """Measure one forward of `inputs` with each version."""
    times: dict[str, list[float]] = {name: [] for name in versions}
    flops = {}
    with no_grad():
        for name, version in versions.items():          # this also warms up
            with Meter().running() as meter:
                version.model.logits(inputs)
            flops[name] = meter.total_flops("forward")
        for _ in range(repeats):
            for name, version in versions.items():
                version.model.logits(inputs)            # bring its weights back into the cache
                start = clock()
                version.model.logits(inputs)
                times[name].append(clock() - start)
    return {name: Footprint(version.num_bytes, flops[name], min(times[name]))
            for name, version in versions.items()}
