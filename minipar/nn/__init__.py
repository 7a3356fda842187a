"""Models: modules, layers, MLP and GPT.  None of them knows of parallelism."""

from .gpt import GPT, GPTConfig
from .layers import Activation, Dropout, Embedding, LayerNorm, Linear
from .mlp import MLP
from .module import Module, ModuleList, Sequential
from .parameter import Parameter, normal, ones, zeros
from .slab import FlatBuffer, Segment, Slab

__all__ = ["GPT", "MLP", "Activation", "Dropout", "Embedding", "FlatBuffer", "GPTConfig",
           "LayerNorm", "Linear", "Module", "ModuleList", "Parameter", "Segment", "Sequential",
           "Slab", "normal", "ones", "zeros"]
