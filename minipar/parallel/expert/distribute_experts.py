"""Cut the experts of a model over ranks; its own code does not change.

    rank of dp        0        1        2        3         different tokens on each
    its experts    │ 0 1      2 3 │  │ 0 1      2 3 │
                   └───── ep ─────┘  └───── ep ─────┘      ranks that share all experts
                      └────── edp ───────┘                 ranks that have the same experts

The ranks of ep are also ranks of dp: attention, norms and routers are data-parallel, over all of
dp.  An expert computes the rows of all ranks of its group.  So its gradient is a sum over the group
already, and is summed over the ranks of edp alone: nothing is divided or multiplied by ep.
Rajbhandari et al. 2022 (DeepSpeed-MoE), section 5.
"""

from typing import NamedTuple

import numpy as np

from ... import autograd as ag
from ...autograd import Tensor
from ...backend import Array, asarray_like
from ...comm import Communicator
from ...comm.collectives import chunk_bounds
from ...nn import Module, MoE, Parameter
from ...nn.moe import Experts
from ...nn.parameter import Unmaterialized
from ..flats import gather_parameter
from .exchange import agree_on_exchange, return_rows, send_rows

AXIS = "ep"             # of the mesh


class DistributedExperts(Experts):
    """Some of a layer's experts: rows of all ranks of `ep` come here, results go back."""

    ep: Communicator
    bounds: list[tuple[int, int]]       # (start, stop) of each rank's experts

    def forward(self, x: Tensor, counts: tuple[int, ...]) -> Tensor:
        """x (rows, d), sorted by expert → (rows, d); expert e has counts[e] rows.  Collective."""
        plan = agree_on_exchange(self.ep, counts, self.bounds)
        here = send_rows(x, self.ep, plan.table)
        sorted_rows = ag.embedding(here, asarray_like(plan.by_expert, x.data))
        y = super().forward(sorted_rows, plan.counts)
        return return_rows(ag.embedding(y, asarray_like(plan.by_source, x.data)), self.ep,
                           plan.table)


def moe_layers(model: Module) -> dict[str, MoE]:
    """The layers with experts, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MoE)}


def distribute_experts(model: Module, ep: Communicator) -> Module:
    """Cut the experts of `model` over the ranks of `ep`, which all call this; return the model.

    The model gets new slabs, since the slabs of experts know `ep`.  Raises ValueError for a model
    without experts, or with too few of them.
    """
    layers = moe_layers(model)
    if layers and ep.size == 1:
        return model
    if not layers:
        raise ValueError("ep cuts experts over ranks, and this model has none: give the GPTConfig "
                         "experts=MoEConfig(8), or leave ep off")
    for parameter in model.parameters():
        parameter.replicated = (*parameter.replicated, AXIS)
    for name, layer in layers.items():
        check_layer(name, layer, ep)
        bounds = chunk_bounds(layer.config.num_experts, ep.size)
        for parameter in layer.experts.parameters():
            cut_experts(parameter, bounds[ep.rank], ep)
        layer.experts = DistributedExperts.replacing(layer.experts, ep=ep, bounds=bounds)
    if model.slabs:
        model.make_slabs(model.slabs[0].data)
    return model


def check_layer(name: str, layer: MoE, ep: Communicator) -> None:
    """Raise ValueError for a layer that cannot be cut."""
    if isinstance(layer.experts, DistributedExperts):
        raise ValueError(f"the experts of {name} are cut over ranks already: build a new model")
    if layer.config.num_experts < ep.size:
        raise ValueError(f"{name} has {layer.config.num_experts} experts, which {ep.size} ranks "
                         "cannot share: choose a smaller ep, or more experts")


class ExpertSplit(NamedTuple):
    """The ranks of `ep` have different experts; the ranks of `tp` may have cut the other axes."""

    ep: Communicator
    tp: Communicator | None

    def gather(self, parameter: Parameter, values: Array) -> np.ndarray:
        """The global array; `values` are this rank's part.  Collective."""
        return gather_parameter(self.tp, parameter, values, self.ep)


def cut_experts(parameter: Parameter, own: tuple[int, int], ep: Communicator) -> None:
    """Keep the experts `own` (start, stop) of a parameter, along its axis 0."""
    parameter.cut_by = ExpertSplit(ep, parameter.cut_by and parameter.cut_by.tp)
    parameter.box = (own, *parameter.box[1:])
    parameter.data = parameter.data[slice(*own)].copy() if parameter.initialized \
        else Unmaterialized(tuple(stop - start for start, stop in parameter.box), parameter.dtype)
    parameter.replicated = tuple(axis for axis in parameter.replicated if axis != AXIS)
