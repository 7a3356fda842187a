"""Models: modules, layers, MLP and GPT.  None of them knows of parallelism."""

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
