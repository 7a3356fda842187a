"""Factor rules of operations on one element or row at a time, and of those that move elements."""

from typing import Any, NamedTuple

import numpy as np

from ..graph import Operation, Value
from .rule import DimFactors, FactorRule, letters, rule_from


def broadcast(operation: Operation, whole_last: bool = False) -> FactorRule:
    """Shapes that broadcast, such as a b, b → a b: an operand lacks factors along which it repeats.

    With `whole_last`, each result needs a whole row.
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


def transpose(operation: Operation) -> FactorRule:
    """a b c → c a b."""
    names = letters(len(operation.result.shape))
    moved = [names[axis] for axis in operation.options["axes"]]
    return rule_from(f"{' '.join(names)} -> {' '.join(moved)}", operation, moves=True)


def reshape(operation: Operation) -> FactorRule:
    """((a b), c) → (a, (b c)): both shapes are cut into their common factors.

    If neither of two lengths divides the other, as 6 and 4 in (6, 2) → (4, 3), these dimensions and
    all after them are whole.
    """
    old, new = operation.inputs[0].shape, operation.result.shape
    before: list[list[str]] = [[] for _ in old]
    after: list[list[str]] = [[] for _ in new]
    sizes: dict[str, int] = {}
    whole: list[str] = []
    i = j = -1
    left = right = 1                    # the factors of old[i] and new[j] that are not matched yet
    while True:
        while left == 1 and i + 1 < len(old):
            i, left = i + 1, old[i + 1]
        while right == 1 and j + 1 < len(new):
            j, right = j + 1, new[j + 1]
        if left == right == 1:
            break
        name = f"f{len(sizes)}"
        if left % right and right % left or 1 in (left, right):
            sizes |= {name: left, f"{name}'": right}
            whole += [name, f"{name}'"]
            before[i].append(name)
            after[j].append(f"{name}'")
            for rest, lengths, at in ((before, old, i), (after, new, j)):
                for k in range(at + 1, len(lengths)):       # later dimensions stay whole
                    rest[k].append(f"w{len(sizes)}")
                    whole.append(f"w{len(sizes)}")
                    sizes[f"w{len(sizes)}"] = lengths[k]
            break
        sizes[name] = min(left, right)
        before[i].append(name)
        after[j].append(name)
        left, right = left // sizes[name], right // sizes[name]
    return FactorRule((tuple([tuple(f) for f in before]),), tuple([tuple(f) for f in after]), sizes,
                      frozenset(whole), moves=True)


class Sliced(NamedTuple):
    """A slice of a dimension of `length`: the neighbours start … stop - 1."""

    dim: int
    length: int
    start: int
    stop: int


def full_index(index: Any, num_dims: int) -> list | None:
    """An index as a list: a part for each dimension, None for a new one.  None if it has arrays."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if not all(part is None or part is Ellipsis or isinstance(part, int | slice | np.integer)
               for part in parts):
        return None
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    at = parts.index(Ellipsis)
    missing = num_dims - sum(part is not None for part in parts) + 1
    return [*parts[:at], *[slice(None)] * missing, *parts[at + 1:]]


def sliced_dimension(operation: Operation) -> Sliced | None:
    """The slice of neighbours that an index takes of one dimension, if all others stay whole.

    None for any other index.
    """
    shape = operation.inputs[0].shape
    parts = full_index(operation.options["index"], len(shape))
    if parts is None or not all(isinstance(part, slice) for part in parts):
        return None
    rows = [range(length)[part] for length, part in zip(shape, parts)]
    found = [Sliced(dim, length, each.start, each.stop) for dim, (length, each) in
             enumerate(zip(shape, rows)) if each != range(length)]
    return found[0] if len(found) == 1 and len(rows[found[0].dim]) and \
        rows[found[0].dim].step == 1 else None


def getitem(operation: Operation) -> FactorRule:
    """x[index]: axes flow along all dimensions that are sliced.

    A whole dimension, or one slice of neighbours, is computed in pieces; other parts of an index
    need the whole dimension.
    """
    shape = operation.inputs[0].shape
    parts = full_index(operation.options["index"], len(shape))
    names = letters(len(shape))
    if parts is None:
        result = [f"r{i}" for i in range(len(operation.result.shape))]
        return rule_from(f"{' '.join(names)} -> {' '.join(result)}", operation,
                         whole=" ".join([*names, *result]))
    sliced = sliced_dimension(operation)
    kept, whole, dim = [], [], 0
    for part in parts:
        if part is None:
            kept.append("1")
            continue
        if isinstance(part, slice):
            kept.append(names[dim])
        is_whole = isinstance(part, slice) and range(shape[dim])[part] == range(shape[dim])
        if not is_whole and (sliced is None or sliced.dim != dim):
            whole.append(names[dim])
        dim += 1
    return rule_from(f"{' '.join(names)} -> {' '.join(kept)}", operation, whole=" ".join(whole))


def concatenate(operation: Operation) -> FactorRule:
    """Arrays one after the other: axes flow along the joined dimension, but it stays whole."""
    names = " ".join(letters(len(operation.result.shape)))
    axis = operation.options["axis"] % len(operation.result.shape)
    return rule_from(", ".join([names] * len(operation.inputs)) + f" -> {names}", operation,
                     whole=names.split()[axis])
