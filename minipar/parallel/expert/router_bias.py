"""Loads of experts over all ranks and microbatches, and the routers' biases that follow them.

    strategy.forward_backward(microbatches)     each rank counts the choices of its tokens
    loads = balance_routers(strategy)           Σ over ranks;  b += rate · sign(mean - load)
    strategy.step(optimizer)

A step has one all-reduce of loads, labelled control, of E + 1 numbers for each layer.  The bias
takes no gradient, so an optimizer leaves it alone.  But the bias lies in the slabs, so checkpoints
and shards have it.  Wang et al. 2024 (auxiliary-loss-free load balancing), algorithm 1.
"""

from typing import NamedTuple

import numpy as np

from ...backend import asarray_like
from ...comm.collectives import all_reduce
from ...nn.moe.router import balance_step
from ..strategy import Strategy
from .distribute_experts import moe_layers


class RouterLoad(NamedTuple):
    """The choices of one layer in one step, over all ranks: `load` (E,), `num_dropped` of them."""

    load: np.ndarray
    num_dropped: int


def balance_routers(strategy: Strategy) -> dict[str, RouterLoad]:
    """Collective.  Move the routers' biases by the loads of a step; return these loads, by layer.

    Call it after the gradients of a step and before `strategy.step`.  Without experts it does
    nothing.
    """
    layers = moe_layers(strategy.model)
    if not layers:
        return {}
    counts = [np.append(layer.load, layer.num_dropped) for layer in layers.values()]
    flat = np.concatenate(counts) if strategy.tp.rank == 0 else np.zeros(sum(map(len, counts)))
    with strategy.comm.labelled("control"):
        flat = all_reduce(strategy.comm, flat.astype(np.int64))
    loads, changes = {}, {}
    for (name, layer), of_layer in zip(layers.items(), np.split(
            flat, np.cumsum([len(count) for count in counts])[:-1])):
        loads[name] = RouterLoad(of_layer[:-1], int(of_layer[-1]))
        if layer.config.bias_rate:
            changes[f"{name}.router.bias"] = balance_step(of_layer[:-1], layer.config.bias_rate)
        layer.forget_counts()
    add_to_parameters(strategy, changes)
    return loads


def forget_loads(strategy: Strategy) -> None:
    """Forget the loads of a step that is skipped: its gradients overflowed."""
    for layer in moe_layers(strategy.model).values():
        layer.forget_counts()


def add_to_parameters(strategy: Strategy, changes: dict[str, np.ndarray]) -> None:
    """Add `changes` to the parameters, by name: each rank adds to the parts that it has."""
    for slab in strategy.slabs:
        for segment in slab.segments:
            if segment.name in changes:
                here = slab.data[segment.start:segment.stop]
                here += asarray_like(segment.local_part(changes[segment.name]).astype(here.dtype),
                                     here)
