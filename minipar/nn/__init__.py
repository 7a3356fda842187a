"""Models: modules, layers, MLP and GPT.  No layer sends a message.

    parameter.py    a leaf that is learned, and its initial values
    slab.py         parameters side by side in one flat array, their gradients in another
    module.py       a tree of parameters with stable names; module_state.py: its state, a copy
    layers.py       linear, embedding, norms, dropout; convolution.py
    mlp.py, gpt.py  the two models; rotary.py: positions that turn queries and keys
    moe/            a mixture of experts in the place of a block's MLP
    step_context.py what dropout and routers ask for: seed, step, numbers of the samples
    chain.py        a model as a chain of parts, which pipelines cut and plans recompute

A strategy changes a model from outside.
"""

from .gpt import GPT, GPTConfig
from .layers import Activation, Dropout, Embedding, LayerNorm, Linear, RMSNorm
from .mlp import MLP
from .module import Module, ModuleList, Sequential
from .moe import MoE, MoEConfig
from .parameter import Parameter, normal, ones, zeros
from .rotary import RopeConfig
from .slab import FlatBuffer, Segment, Slab

__all__ = ["GPT", "MLP", "Activation", "Dropout", "Embedding", "FlatBuffer", "GPTConfig",
           "LayerNorm", "Linear", "MoE", "MoEConfig", "Module", "ModuleList", "Parameter",
           "RMSNorm", "RopeConfig", "Segment", "Sequential", "Slab", "normal", "ones", "zeros"]
