"""Factor rules of products, reductions and lookups: the operations that contract a factor."""

from numpy.lib.array_utils import normalize_axis_tuple

from ...autograd.ops.reductions import Max
from ..graph import Operation
from .rule import FactorRule, letters, rule_from


def linear(operation: Operation) -> FactorRule:
    """x (…, i) w (i, o) + bias (o) → (…, o): i is contracted."""
    x, _, bias = operation.inputs
    rows = " ".join(letters(len(x.shape) - 1))
    return rule_from(f"{rows} i, i o, {'_' if bias is None else 'o'} -> {rows} o", operation,
                     repeated=frozenset([2]))


def matmul(operation: Operation) -> FactorRule:
    """a (…, n, k) b (…, k, m) → (…, n, m): k is contracted, leading dimensions broadcast."""
    a, b = operation.inputs
    leading = operation.result.shape[:-2]
    names = letters(len(leading))

    def part(shape: tuple[int, ...], last: str) -> str:
        own = shape[:-2]
        missing = len(leading) - len(own)
        return " ".join([name if length == whole else "1" for name, length, whole in
                         zip(names[missing:], own, leading[missing:])]) + last

    return rule_from(f"{part(a.shape, ' n k')}, {part(b.shape, ' k m')} -> "
                     f"{' '.join(names)} n m", operation)


def reduction(operation: Operation) -> FactorRule:
    """Σ or max over some dimensions, which are contracted."""
    shape = operation.inputs[0].shape
    axis, keepdims = operation.options.get("axis"), operation.options.get("keepdims", False)
    reduced = range(len(shape)) if axis is None else normalize_axis_tuple(axis, len(shape))
    names = letters(len(shape))
    kept = ["1" if i in reduced else name for i, name in enumerate(names)
            if keepdims or i not in reduced]
    return rule_from(f"{' '.join(names)} -> {' '.join(kept)}", operation,
                     combine="max" if operation.function is Max else "sum")


def embedding(operation: Operation) -> FactorRule:
    """table (v, d), ids (…) → (…, d): a rank without a word gives zeros, so v is contracted."""
    rows = " ".join(letters(len(operation.inputs[1].shape)))
    return rule_from(f"v w, {rows} -> {rows} w", operation)


def cross_entropy(operation: Operation) -> FactorRule:
    """logits (…, v), targets (…) → a number: all factors are contracted.

    A cut vocabulary is handled within the operation, as in `parallel/tensor/vocabulary.py`.
    """
    rows = " ".join(letters(len(operation.inputs[1].shape)))
    return rule_from(f"{rows} v, {rows} -> ", operation)
