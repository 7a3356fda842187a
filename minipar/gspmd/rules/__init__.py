"""The factor rule of every operation of `minipar.autograd`, in one table.

    rule.py          what a factor rule is
    factor_flow.py   one step of propagation, by a rule
    shapes.py        rules of operations on elements or rows, and of those that move elements
    products.py      rules of operations that contract a factor
    heads.py         rules of attention and rotary positions

To add a rule, write it beside others of its kind, and enter the operation here.
"""

from collections.abc import Callable
from dataclasses import replace

from ...autograd import Function
from ...autograd.ops import (
    activations,
    attention,
    cross_entropy,
    elementwise,
    embedding,
    matmul,
    movement,
    normalization,
    reductions,
    rounding,
)
from ..constrain import Constrain
from ..graph import Operation
from ..shard_map import ShardMap, shard_map_rule
from . import heads, products, shapes
from .rule import FactorRule

RULES: dict[type[Function], Callable[[Operation], FactorRule]] = {
    **dict.fromkeys([
        elementwise.Add, elementwise.Subtract, elementwise.Multiply, elementwise.Divide,
        elementwise.Power, elementwise.Exp, elementwise.Log, elementwise.Sqrt, elementwise.Where,
        elementwise.AsType, activations.Relu, activations.Tanh, activations.Gelu,
        activations.SwiGLU, activations.Dropout, rounding.Round, movement.BroadcastTo, Constrain,
    ], shapes.broadcast),
    **dict.fromkeys([activations.Softmax, activations.LogSoftmax, normalization.LayerNorm,
                     normalization.RMSNorm], shapes.rows),
    matmul.Linear: products.linear,
    matmul.MatMul: products.matmul,
    reductions.Sum: products.reduction,
    reductions.Max: products.reduction,
    embedding.Embedding: products.embedding,
    cross_entropy.CrossEntropy: products.cross_entropy,
    movement.Reshape: shapes.reshape,
    movement.Transpose: shapes.transpose,
    movement.GetItem: shapes.getitem,
    movement.Concatenate: shapes.concatenate,
    attention.FusedAttention: heads.fused_attention,
    embedding.Rotary: heads.rotary,
    ShardMap: shard_map_rule,
}


def rule_of(operation: Operation) -> FactorRule:
    """The factor rule of an operation.  Raises TypeError for one that has none."""
    if operation.function not in RULES:
        raise TypeError(f"{operation.function.__name__} has no factor rule, so its sharding cannot "
                        "be propagated: add one to gspmd/rules")
    rule = RULES[operation.function](operation)
    return replace(rule, whole=rule.whole | heads.out_of_order(operation, rule))
