"""Factor rules of attention and of rotary positions: heads are computed apart, time is whole.

The last dimension of a fused attention's input is [q | k | v].  Cut for p ranks, each has its heads
of q, of k and of v side by side; `sections` of a Value say so.
"""

from ..graph import Graph, Operation, Value
from .rule import FactorRule, rule_from


def attention(operation: Operation) -> FactorRule:
    """q (b, heads, t, d), k and v (b, kv heads, s, d) → (b, heads, t, d)."""
    q, k, _, keep = operation.inputs
    kv_heads = k.shape[1]
    mask = "_" if keep is None else "b (h r) t s"
    return rule_from(f"b (h r) t d, b h s d, b h s d, {mask} -> b (h r) t d", operation,
                     {"h": kv_heads, "r": q.shape[1] // kv_heads}, whole="t s d")


def fused_attention(operation: Operation) -> FactorRule:
    """qkv (b, t, (heads + 2 kv heads) d) → (b, t, heads d): cut by heads of k and v."""
    keep = operation.inputs[1]
    mask = "_" if keep is None else "b (h r) t s"
    kv_heads = operation.options["num_kv_heads"]
    return rule_from(f"b t (h w), {mask} -> b t (h o)", operation,
                     {"h": kv_heads, "r": operation.options["num_heads"] // kv_heads,
                      "w": operation.inputs[0].shape[2] // kv_heads,
                      "o": operation.result.shape[2] // kv_heads},
                     whole="t s" if keep is not None else "t")


def rotary(operation: Operation) -> FactorRule:
    """x (b, t, heads n), the first `num_heads` turned: cut by heads, if every rank turns as many.

    That holds if all heads are turned, or if the dimension has sections.
    """
    width = 2 * operation.options["cos"].shape[-1]
    x = operation.inputs[0]
    num_heads = x.shape[2] // width
    if x.sections:
        num_heads = min(x.sections) // width
    return rule_from("b t (h w) -> b t (h w)", operation, {"h": num_heads},
                     whole="" if x.sections or operation.options["num_heads"] == num_heads
                     else "h w", moves=True)


def mark_sections(graph: Graph) -> None:
    """Note the sections of every fused attention's input, and of the values that it comes from."""
    for operation in graph.operations:
        if operation.function.__name__ == "FusedAttention":
            heads, kv_heads = operation.options["num_heads"], operation.options["num_kv_heads"]
            width = operation.inputs[0].shape[2] // (heads + 2 * kv_heads)
            _mark(operation.inputs[0], (heads * width, kv_heads * width, kv_heads * width))


SECTIONED = ("Linear", "Rotary", "Add", "AsType", "Round", "Dropout", "Constrain")


def _mark(value: Value, sections: tuple[int, ...]) -> None:
    value.sections = sections
    operation = value.operation
    if operation is None or operation.function.__name__ not in SECTIONED:
        return
    for x in operation.values[operation.function.__name__ == "Linear":]:
        if x.shape[-1:] == value.shape[-1:] and not x.sections:
            _mark(x, sections)
