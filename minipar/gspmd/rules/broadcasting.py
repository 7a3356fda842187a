"""Factor rules of operations on one element at a time, and of operations on whole dimensions."""

from ..graph import Operation, Value
from .rule import DimFactors, FactorRule, letters


def broadcast(operation: Operation, whole_last: bool = False) -> FactorRule:
    """Shapes that broadcast: a b, a b → a b; an operand lacks what it is repeated along.

    `whole_last`: each result needs a whole row.
    """
    shape = operation.result.shape
    names = letters(len(shape))
    operands: list[DimFactors | None] = []
    repeated = []
    for index, x in enumerate(operation.inputs):
        if not isinstance(x, Value) or not x.shape:
            operands.append(None)
            continue
        missing = len(shape) - len(x.shape)
        operands.append(tuple([(name,) if length == whole else () for name, length, whole in
                               zip(names[missing:], x.shape, shape[missing:])]))
        if x.shape != shape:
            repeated.append(index)
    whole = frozenset(names[-1:] if whole_last else ())
    return FactorRule(tuple(operands), tuple([(name,) for name in names]),
                      dict(zip(names, shape)), whole, frozenset(repeated), moves=True,
                      elementwise=not whole_last)


def rows(operation: Operation) -> FactorRule:
    """x (…, n), gain (n,) → (…, n): each row is computed as a whole."""
    return broadcast(operation, whole_last=True)
