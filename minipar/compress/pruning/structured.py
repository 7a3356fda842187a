"""Structured pruning: prune whole neurons and heads; the rest is a smaller dense model.

        weight of the first layer         weight of the second
               │ │ ▒ │                        ── ── ──          a neuron is a column, its bias,
    x ──▶      │ │ ▒ │      ─▶ act ─▶         ▒▒ ▒▒ ▒▒    ──▶   and a row of the next layer
               │ │ ▒ │                        ── ── ──

Without its column, a neuron has the same output for any input: act(bias), or act(0) if its bias is
pruned too.  So the neuron can be removed.  If its constant output times its row is added to the
bias of the next layer, the outputs of the model do not change.  A head can be removed in the
same way: without its columns of v, its output is its bias of v, because attention weights add up
to 1.

The score of a unit, a neuron or a head, is ‖column‖ · ‖row‖, which is invariant to scaling the one
up and the other down.  After Li et al. 2017, Pruning filters for efficient convnets; Michel et al.
2019, Are sixteen heads really better than one?

A neuron of SwiGLU has a column in each of two first layers, gate and fc; its score is the product
of the three norms.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from ... import autograd as ag
from ...autograd import Tensor
from ...backend import to_host
from ...nn import GPT, MLP, Activation, Linear, Module
from ...nn.gpt import GatedFeedForward
from ...nn.moe import refuse_experts
from .distributed_topk import sortable_keys
from .prune import check_amount

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Units:
    """The units (neurons or heads) between two linear layers, `first` and `second`.

    Unit i has the columns `columns[i]` of the first layer's weight.  Its output comes from the
    columns `values[i]` among them, and goes to the rows `rows[i]` of the second layer's weight.
    Each array has one row for each unit.  `act` is the function between the two layers.
    """

    kind: str
    first: str
    second: str
    columns: np.ndarray
    values: np.ndarray
    rows: np.ndarray
    act: Callable[[Tensor], Tensor]
    gate: str | None = None             # SwiGLU's other first layer, whose output is a factor

    @property
    def firsts(self) -> list[str]:
        """The layers that have a unit's columns."""
        return [self.first] if self.gate is None else [self.first, self.gate]

    def __len__(self) -> int:
        return len(self.rows)


@singledispatch
def units_of(model: Module) -> list[Units]:
    """The neurons between the layers of an MLP; the neurons, and the heads, of a GPT's blocks.

    Raises TypeError for other models.
    """
    raise TypeError(f"the units of a {type(model).__name__} are not known: only those of an MLP "
                    "and of a GPT")


@units_of.register
def _(model: MLP) -> list[Units]:
    found, modules = [], list(model)
    layers = [i for i, module in enumerate(modules) if isinstance(module, Linear)]
    for i, j in zip(layers, layers[1:]):
        act = next(m for m in modules[i:j] if isinstance(m, Activation))
        found.append(neurons(str(i), str(j), modules[i], act))
    return found


@units_of.register
def _(model: GPT) -> list[Units]:
    refuse_experts(model, "pruned")
    found = []
    for i, block in enumerate(model.h):
        found.append(heads(f"h.{i}.attn", block.attn.num_heads, block.attn.num_kv_heads,
                           block.attn.c_proj.weight.shape[0] // block.attn.num_heads))
        gate = f"h.{i}.mlp.c_gate" if isinstance(block.mlp, GatedFeedForward) else None
        found.append(neurons(f"h.{i}.mlp.c_fc", f"h.{i}.mlp.c_proj", block.mlp.c_fc, ag.gelu, gate))
    return found


def neurons(first: str, second: str, layer: Linear, act: Callable[[Tensor], Tensor],
            gate: str | None = None) -> Units:
    """The neurons of `layer`, one for each output, as units."""
    each = np.arange(layer.weight.shape[1])[:, None]
    return Units("neurons", first, second, each, each, each, act, gate)


def heads(name: str, num_heads: int, kv_heads: int, width: int) -> Units:
    """The heads of keys and values as units, each with the query heads that share it.

    The columns of c_attn are [q | k | v].  A unit has as many rows of c_proj as columns of q.
    """
    shared = num_heads // kv_heads * width
    rows = np.arange(num_heads * width).reshape(kv_heads, shared)
    keys = rows.size + np.arange(kv_heads * width).reshape(kv_heads, width)
    values = keys + keys.size
    return Units("heads", f"{name}.c_attn", f"{name}.c_proj", np.hstack([rows, keys, values]),
                 np.tile(values.reshape(kv_heads, 1, width), (1, num_heads // kv_heads, 1)
                         ).reshape(kv_heads, shared), rows, lambda x: x)


def used_values(model: Module) -> Values:
    """The values of all parameters as the model uses them, after masks, by full name."""
    modules, found = dict(model.named_modules()), {}
    for name, _ in model.named_parameters():
        module, _, own_name = name.rpartition(".")
        found[name] = np.array(to_host(getattr(modules[module], own_name).data))
    return found


def unit_scores(values: Values, units: Units) -> np.ndarray:
    """‖column‖ · ‖row‖ of each unit, from the values of a model: (units,)."""
    score = np.linalg.norm(values[f"{units.second}.weight"][units.rows], axis=(1, 2))
    for first in units.firsts:
        columns = values[f"{first}.weight"][:, units.values]
        score = score * np.linalg.norm(columns, axis=(0, 2))
    return score


def unit_masks(model: Module, amount: float) -> dict[str, np.ndarray]:
    """Masks, by full name, without the `amount` of lowest-scored units of each layer.

    The number is rounded, and at least one unit stays.  Raises ValueError for an impossible amount.
    """
    check_amount(amount)
    own, values, masks = dict(model.named_parameters()), used_values(model), {}

    def mask(name: str) -> np.ndarray:
        return masks.setdefault(name, np.ones(own[name].global_shape, bool))
    for units in units_of(model):
        number = min(round(amount * len(units)), len(units) - 1)
        removed = np.argsort(sortable_keys(unit_scores(values, units)), kind="stable")[:number]
        for first in units.firsts:
            mask(f"{first}.weight")[:, units.columns[removed].ravel()] = False
            if f"{first}.bias" in own:
                mask(f"{first}.bias")[units.columns[removed].ravel()] = False
        mask(f"{units.second}.weight")[units.rows[removed].ravel()] = False
    return masks


def dead_units(values: Values, units: Units) -> np.ndarray:
    """Mark the units with a constant output, and those with an unused output: (units,) bool."""
    has_input = np.any([values[f"{first}.weight"][:, units.values].any((0, 2))
                        for first in units.firsts], axis=0)
    return ~has_input | ~values[f"{units.second}.weight"][units.rows].any((1, 2))
