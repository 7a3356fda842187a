"""Mixture of experts: a block's MLP becomes many, of which each token uses a few.

    config     sizes, the router, capacity, losses
    routing    decisions in whole numbers: which experts, who is dropped, which row goes where
    router     scores, gates, and the losses that keep experts balanced
    layer      MoE, the layer: dispatch, experts, combine
"""

from .config import MoEConfig
from .layer import Experts, MoE
from .router import Router

__all__ = ["Experts", "MoE", "MoEConfig", "Router"]
