"""What a model costs to keep and to run: bytes, FLOPs and seconds, which are three things.

    bytes      of the arrays that have to be stored
    FLOPs      of one forward, as the operations report them
    seconds    of one forward: the fastest of several, taken in turns with the other models, since
               whatever else the machine does can only add

Fewer bytes are not always fewer FLOPs, nor are fewer FLOPs fewer seconds.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..autograd import Meter, no_grad
from ..backend import Array
from ..nn import Linear, Module
from .pruning.shrink import without_masks
from .pruning.sparse import SparseLinear, TwoOfFourLinear, bitmap_bytes, replace_linear_layers


class Footprint(NamedTuple):
    """What one model costs."""

    num_bytes: int
    flops: int
    seconds: float


class ModelVersion(NamedTuple):
    """A way to keep and run a model: `num_bytes` to store, `model` to run."""

    num_bytes: int
    model: Module


def model_bytes(model: Module, masks: Mapping[str, Array] | None = None) -> int:
    """Bytes of all parameters, of those that have a mask only what it keeps, and the mask's bits.
    """
    masks, total = masks or {}, 0
    for name, p in model.named_parameters():
        kept = {name: masks[name]} if name in masks else {}
        total += bitmap_bytes(kept, p.dtype.itemsize) if kept else p.data.nbytes
    return total


def sparse_versions(model: Module, masks: Mapping[str, Array],
                    two_of_four: bool = False) -> dict[str, ModelVersion]:
    """Ways to run a model with masks: with zeros in dense weights, or as what is kept of them."""
    dense = without_masks(model)
    found = {"zeros, dense": ModelVersion(model_bytes(model, masks), dense)}
    kinds: dict[str, type] = {"kept only, gathered": SparseLinear}
    if two_of_four:
        kinds["compressed"] = TwoOfFourLinear
    for name, kind in kinds.items():
        made = replace_linear_layers(without_masks(model), kind)
        held = sum(m.nbytes for _, m in made.named_modules() if isinstance(m, kind))
        weights = {id(m._parameters["weight"]): m for _, m in dense.named_modules()
                   if isinstance(m, Linear)}
        rest = sum(p.data.nbytes for p in dense.parameters() if id(p) not in weights)
        found[name] = ModelVersion(held + rest, made)
    return found


def measure(versions: Mapping[str, ModelVersion], inputs: Array, repeats: int = 15,
            clock: Callable[[], float] = time.perf_counter) -> dict[str, Footprint]:
    """What each version costs for one forward of `inputs`."""
    times: dict[str, list[float]] = {name: [] for name in versions}
    flops = {}
    with no_grad():
        for name, version in versions.items():          # which also warms up
            with Meter().running() as meter:
                version.model.logits(inputs)
            flops[name] = meter.total_flops("forward")
        for _ in range(repeats):
            for name, version in versions.items():
                version.model.logits(inputs)            # its weights are in the cache again
                start = clock()
                version.model.logits(inputs)
                times[name].append(clock() - start)
    return {name: Footprint(version.num_bytes, flops[name], min(times[name]))
            for name, version in versions.items()}
