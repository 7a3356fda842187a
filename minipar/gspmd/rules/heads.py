"""Factor rules of attention and of rotary positions: heads are computed apart, time is whole.

The last dimension of a fused attention's input is [q | k | v].  When it is cut, each rank gets its
heads of q, of k and of v side by side.  The `sections` of a Value say that it is cut in this way.
"""

import itertools

from ...autograd.ops.activations import Dropout
from ...autograd.ops.attention import FusedAttention
from ...autograd.ops.elementwise import Add, AsType
from ...autograd.ops.embedding import Rotary
from ...autograd.ops.matmul import Linear
from ...autograd.ops.rounding import Round
from ..constrain import Constrain
from ..graph import Graph, Operation, Value
from ..shard_map import ShardMap
from .rule import FactorRule, flat_names, rule_from


def fused_attention(operation: Operation) -> FactorRule:
    """qkv (b, t, (heads + 2 kv heads) d) → (b, t, heads d): cut by heads of k and v."""
    keep = operation.inputs[1]
    mask = "_" if keep is None else "b (h r) t s"
    kv_heads = operation.options["num_kv_heads"]
    return rule_from(f"b t (h w), {mask} -> b t (h o)", operation,
                     {"h": kv_heads, "r": operation.options["num_heads"] // kv_heads,
                      "w": operation.inputs[0].shape[2] // kv_heads,
                      "o": operation.result.shape[2] // kv_heads},
                     whole="t r w o s" if keep is not None else "t r w o")


def rotary(operation: Operation) -> FactorRule:
    """x (b, t, heads n), whose first `num_heads` heads are turned: cut by heads if possible.

    Every rank must turn equally many heads.  So heads are cut only if the turned ones are all
    heads, or all heads of the first sections.
    """
    width = 2 * operation.options["cos"].shape[-1]
    sections = operation.inputs[0].sections or operation.inputs[0].shape[2:]
    turned = width * operation.options["num_heads"]
    alike = turned in itertools.accumulate(sections) and not any(n % width for n in sections)
    return rule_from("b t (h w) -> b t (h w)", operation, {"h": min(sections) // width if alike
                                                           else 1}, whole="w", moves=True)


# operations that treat all places of the last dimension alike, so that their order is free
SECTIONED = (Linear, Rotary, Add, AsType, Round, Dropout, Constrain)


def mark_sections(graph: Graph) -> None:
    """Set the sections of each fused attention's input, and of the values from which it comes.

    A value stays in its natural order if the program's users give or get its pieces, or if two
    attentions want it in different orders.
    """
    natural = {value for value in graph.inputs.values() if not value.is_parameter}
    natural |= set(graph.outputs)
    wanted: dict[Value, set[tuple[int, ...]]] = {}
    for operation in graph.operations:
        if operation.function is ShardMap:
            natural |= {operation.result, *operation.values}
    for operation in graph.operations:
        if operation.function is FusedAttention:
            _want(operation.inputs[0], sections_of(operation), natural, wanted)
    for value, found in wanted.items():
        value.sections = next(iter(found)) if len(found) == 1 else ()


def sections_of(operation: Operation) -> tuple[int, int, int]:
    """The lengths of q, k and v in a fused attention's input."""
    heads, kv_heads = operation.options["num_heads"], operation.options["num_kv_heads"]
    width = operation.inputs[0].shape[2] // (heads + 2 * kv_heads)
    return heads * width, kv_heads * width, kv_heads * width


def _want(value: Value, sections: tuple[int, ...], natural: set[Value],
          wanted: dict[Value, set[tuple[int, ...]]]) -> None:
    found = wanted.setdefault(value, set())
    if value in natural or sections in found:
        return
    found.add(sections)
    operation = value.operation
    if operation is not None and operation.function in SECTIONED:
        for x in operation.values[operation.function is Linear:]:
            if x.shape[-1:] == value.shape[-1:]:
                _want(x, sections, natural, wanted)


def out_of_order(operation: Operation, rule: FactorRule) -> set[str]:
    """The factors along which the values of an operation are not in the same order.

    Pieces of sections (q₀ k₀ v₀) cannot be computed with pieces of a dimension in natural order.
    """
    function = operation.function
    orders: dict[str, set[tuple[int, ...]]] = {}
    for index in range(-1, len(operation.inputs)):
        value = operation.result if index < 0 else operation.inputs[index]
        factors = rule.of(index)
        if not isinstance(value, Value) or not factors:
            continue
        order = value.sections
        if function is FusedAttention and index == 0:     # (): attention's own order
            order = () if order == sections_of(operation) else (0,)
        for factor in flat_names(factors[:-1]):
            orders.setdefault(factor, set()).add(())
        for factor in factors[-1]:
            orders.setdefault(factor, set()).add(order)
    return {factor for factor, found in orders.items()
            if len(found) > 1 or function not in SECTIONED and found != {()}}
