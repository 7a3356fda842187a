"""Mixture of experts: many MLPs replace a block's single MLP, and each token uses a few of them.

    config     sizes, the router, capacity, losses
    rows       the operations: rows times the matrices of their experts, sums of rows
    dispatch   decisions in whole numbers: which experts, who is dropped, which row goes where
    router     scores, gates, and the losses that keep experts balanced
    layer      MoE, the layer: dispatch, experts, combine

Shazeer et al. 2017.
"""

from .config import MoEConfig
from .layer import Experts, MoE, refuse_experts
from .router import Router

__all__ = ["Experts", "MoE", "MoEConfig", "Router", "refuse_experts"]
