"""Automatic differentiation: Tensor, Function, and the operations of an MLP and a GPT.

    tensor.py       Tensor, and the nodes and gradient slots behind it
    function.py     an operation and its derivative; calling one adds a node to the graph
    engine.py       backward: the walk over the graph
    saved.py        arrays kept for backward, and hooks on them
    online_softmax.py       attention over some keys at a time, for long sequences and caches
    meter.py        FLOPs, bytes and calls of each operation
    errors.py       the errors of wrong calls
    gradcheck.py    derivatives against finite differences
    ops/            the operations, one file a family, each with its derivative beside it

To add an operation: CONTRIBUTING.md, "An operation".
"""

from .engine import backward, reachable_slots
from .function import Function, no_grad
from .gradcheck import gradcheck
from .meter import Meter, current_meter
from .ops import operators as _operators  # noqa: F401 (gives Tensor its operators)
from .ops.activations import dropout, gelu, log_softmax, relu, softmax, swiglu, tanh
from .ops.attention import fused_attention
from .ops.cross_entropy import IGNORE_INDEX, count_targets, cross_entropy
from .ops.elementwise import astype, exp, log, sqrt, where
from .ops.embedding import embedding, rotary
from .ops.matmul import linear, matmul
from .ops.movement import broadcast_to, concatenate, getitem, reshape, split, transpose
from .ops.normalization import layer_norm, rms_norm
from .ops.reductions import max, mean, sum
from .saved import saved_tensors_hooks
from .tensor import GradientSlot, Tensor

__all__ = [
    "IGNORE_INDEX", "Function", "GradientSlot", "Meter", "Tensor", "astype", "backward",
    "broadcast_to", "concatenate", "count_targets", "cross_entropy", "current_meter", "dropout",
    "embedding", "exp", "fused_attention", "getitem", "gelu", "gradcheck", "layer_norm", "linear",
    "log", "log_softmax", "matmul", "max", "mean", "no_grad", "reachable_slots", "relu", "reshape",
    "rms_norm", "rotary", "saved_tensors_hooks", "softmax", "split", "sqrt", "sum", "swiglu",
    "tanh", "transpose", "where",
]
