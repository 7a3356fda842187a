"""Factor rules of operations that move elements: shapes, axes, slices, pieces."""

from ..graph import Operation
from .rule import FactorRule, letters, rule_from


def transpose(operation: Operation) -> FactorRule:
    """a b c → c a b."""
    names = letters(len(operation.result.shape))
    moved = [names[axis] for axis in operation.options["axes"]]
    return rule_from(f"{' '.join(names)} -> {' '.join(moved)}", operation, moves=True)


def reshape(operation: Operation) -> FactorRule:
    """(a b), c → a, (b c): both shapes are cut into their common factors.

    Lengths that share no factors, as 6 and 4 in (6, 2) → (4, 3), make one whole block.
    """
    old, new = operation.inputs[0].shape, operation.result.shape
    before: list[list[str]] = [[] for _ in old]
    after: list[list[str]] = [[] for _ in new]
    sizes: dict[str, int] = {}
    whole: list[str] = []
    i = j = -1
    left = right = 1                    # what is not yet matched of old[i] and new[j]
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
                for k in range(at + 1, len(lengths)):       # the rest is not looked into
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


def getitem(operation: Operation) -> FactorRule:
    """x[index]: whole dimensions pass; sliced ones keep their sharding, but are taken whole."""
    shape, index = operation.inputs[0].shape, operation.options["index"]
    parts = list(index) if isinstance(index, tuple) else [index]
    if not all(part is None or part is Ellipsis or isinstance(part, int | slice) for part in parts):
        names = letters(len(shape))
        result = [f"r{i}" for i in range(len(operation.result.shape))]
        return rule_from(f"{' '.join(names)} -> {' '.join(result)}", operation,
                         whole=" ".join([*names, *result]))
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    at = parts.index(Ellipsis)
    missing = len(shape) - sum(part is not None for part in parts) + 1
    parts[at:at + 1] = [slice(None)] * missing
    names, kept, whole, dim = letters(len(shape)), [], [], 0
    for part in parts:
        if part is None:
            kept.append("1")
            continue
        if isinstance(part, slice):
            kept.append(names[dim])
        if part != slice(None) and range(shape[dim])[part] != range(shape[dim]):
            whole.append(names[dim])
        dim += 1
    return rule_from(f"{' '.join(names)} -> {' '.join(kept)}", operation, whole=" ".join(whole))


def concatenate(operation: Operation) -> FactorRule:
    """Pieces one after the other: that dimension keeps its sharding, but is joined whole."""
    names = " ".join(letters(len(operation.result.shape)))
    axis = operation.options["axis"] % len(operation.result.shape)
    return rule_from(", ".join([names] * len(operation.inputs)) + f" -> {names}", operation,
                     whole=names.split()[axis])
