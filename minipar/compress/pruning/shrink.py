"""Remove dead neurons and heads from a model: the same function with fewer weights.

    h = act(x W + b),   y = h V + c                 let column j of W be 0: h_j = act(b_j)
    W without column j, b without b_j,
    V without row j,    c + act(b_j) V_j            and y is what it was

A masked model computes as many FLOPs as a dense one; a smaller model computes fewer.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...autograd import Tensor, swiglu
from ...nn import GPT, MLP, Activation, Dropout
from .structured import Units, Values, dead_units, units_of, used_values


def remove_units(values: Mapping[str, np.ndarray], units: Units, removed: np.ndarray,
                 fold: bool = True) -> Values:
    """`values`, arrays by parameter name, without the dead units marked in `removed` (units,) bool.

    With `fold`, the constant outputs of these units are added to the bias of the next layer.  Do
    not fold states of an optimizer.
    """
    second, values = f"{units.second}.weight", dict(values)
    columns, rows = units.columns[removed].ravel(), units.rows[removed].ravel()
    if fold and f"{units.first}.bias" in values:        # without biases the constant is 0
        constant = constant_outputs(values, units, removed)
        values[f"{units.second}.bias"] = (values[f"{units.second}.bias"]
                                          + constant @ values[second][rows])
    for first in units.firsts:
        values[f"{first}.weight"] = np.delete(values[f"{first}.weight"], columns, axis=1)
        if f"{first}.bias" in values:
            values[f"{first}.bias"] = np.delete(values[f"{first}.bias"], columns)
    values[second] = np.delete(values[second], rows, axis=0)
    return values


def constant_outputs(values: Values, units: Units, removed: np.ndarray) -> np.ndarray:
    """The outputs of the removed units, which have no input: they follow from their biases."""
    own = units.values[removed].ravel()
    bias = Tensor(values[f"{units.first}.bias"][own])
    if units.gate is None:
        return units.act(bias).data
    return swiglu(Tensor(values[f"{units.gate}.bias"][own]), bias).data


def removable(model: MLP | GPT, values: Values) -> list[tuple[Units, np.ndarray]]:
    """The units of a model with these values, each with marks (units,) of dead units to remove.

    At least one unit of each layer stays.  In a GPT each block loses the same number, because all
    blocks must have the same sizes.
    """
    found = [(units, dead_units(values, units)) for units in units_of(model)]
    most = {kind: min(int(removed.sum()) for units, removed in found if units.kind == kind)
            for kind in {units.kind for units, _ in found}}
    result = []
    for units, removed in found:
        number = min(most[units.kind] if isinstance(model, GPT) else int(removed.sum()),
                     len(units) - 1)
        result.append((units, removed & (np.cumsum(removed) <= number)))
    return result


def smaller_model(model: MLP | GPT, counts: Mapping[tuple[str, str], int]) -> MLP | GPT:
    """A new model like `model`, without values, with fewer units.

    `counts` has the remaining number of units for each (kind, first layer's name).
    """
    if isinstance(model, MLP):
        sizes = [model.sizes[0], *counts.values(), model.sizes[-1]]
        modules = list(model)
        act = next((m.kind for m in modules if isinstance(m, Activation)), "relu")
        rate = next((m.rate for m in modules if isinstance(m, Dropout)), 0.0)
        return MLP(sizes, act, rate)
    left = {kind: count for (kind, _), count in counts.items()}     # the same in all blocks
    old, attn = model.config, model.h[0].attn
    return GPT(replace(
        old, num_heads=left["heads"] * (attn.num_heads // attn.num_kv_heads),
        mlp_width=left["neurons"],
        num_kv_heads=None if old.num_kv_heads is None else left["heads"],
        head_width=old.head_width or old.width // old.num_heads))


def shrink(model: MLP | GPT, *others: Mapping[str, np.ndarray]) -> tuple[MLP | GPT, list[Values]]:
    """(a model without the dead units of `model`, which computes the same; the `others`).

    `others` are arrays by parameter name, such as an optimizer's moments, and are cut alike.  The
    new model has no masks.
    """
    values, cut, counts = used_values(model), [dict(other) for other in others], {}
    for units, removed in removable(model, values):
        values = remove_units(values, units, removed)
        cut = [remove_units(other, units, removed, fold=False) for other in cut]
        counts[units.kind, units.first] = len(units) - int(removed.sum())
    return _with(smaller_model(model, counts), values), cut


def without_masks(model: MLP | GPT) -> MLP | GPT:
    """A copy of `model` without masks, with zeros in place of masked weights."""
    counts = {(units.kind, units.first): len(units) for units in units_of(model)}
    return _with(smaller_model(model, counts), used_values(model))


def _with(model: MLP | GPT, values: Values) -> MLP | GPT:
    dtype = next(iter(values.values())).dtype
    model.to_empty(dtype).load_state_dict(values)
    return model
