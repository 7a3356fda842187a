"""A factor rule: which dimensions of the operands and of the result of an operation are the same.

    linear       x (b, i) · w (i, o) → y (b, o)     b, o pass through; i is contracted
    reshape      x (b, (h k)) → y (b, h, k)         a dimension may be made of several factors
    layer norm   x (b, n) → y (b, n)                b passes through; n must be whole

Axes cut factors: if b is cut, all dimensions that are b are cut alike.  A contracted factor that is
cut leaves partial results, which must be summed.  The notation is that of einsum and einops.  Xu
et al. 2021 (GSPMD), section 3; Shardy's sharding rules.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..graph import Operation, Value
from ..spec import Axes, Dims

Factors = tuple[str, ...]
DimFactors = tuple[Factors, ...]        # for each dimension its factors, major first


@dataclass(frozen=True)
class FactorRule:
    """The factors of an operation's operands (None: no array) and of its result.

    whole        factors that no rank can compute in pieces; axes flow along them all the same
    repeated     operands that are broadcast along factors that they lack
    moves        the operation is element-wise, or only moves elements: axes flow through it first
    elementwise  the operation is element-wise
    combine      how partial results become one: "sum", "max", or "inside" the operation
    """

    operands: tuple[DimFactors | None, ...]
    result: DimFactors
    sizes: Mapping[str, int]
    whole: frozenset[str] = frozenset()
    repeated: frozenset[int] = frozenset()
    moves: bool = False
    elementwise: bool = False
    combine: str = "sum"

    @property
    def factors(self) -> list[str]:
        """All factors, in the order in which they appear."""
        return list(self.sizes)

    @property
    def contracted(self) -> set[str]:
        """Factors of operands that the result does not have."""
        kept = {f for factors in self.result for f in factors}
        return {f for dims in self.operands if dims for factors in dims for f in factors} - kept

    def fits(self, by_factor: Mapping[str, Axes], mesh: Mapping[str, int]) -> bool:
        """True if operands and result can be cut by these axes without losing one."""
        return all(fits(by_factor, self.of(i) or (), self.sizes, mesh)
                   for i in range(-1, len(self.operands)))

    def of(self, index: int) -> DimFactors | None:
        """The factors of operand `index`; of the result for -1."""
        return self.result if index < 0 else self.operands[index]


def rule_from(text: str, operation: Operation, sizes: Mapping[str, int] | None = None,
              whole: str = "", **options: object) -> FactorRule:
    """The rule written as "b t (h k), _ -> b t h k", with sizes from the operation's shapes.

    `_` stands for an operand that is no array, `1` for a dimension without factors.  `sizes` are
    the sizes of factors in parentheses; in each parenthesis one may be left out.
    """
    left, right = text.split("->")
    operands = [_parse(part) for part in left.split(",")]
    found: dict[str, int] = {}
    shapes = [x.shape if isinstance(x, Value) else () for x in operation.inputs]
    for dims, shape in zip([*operands, _parse(right)], [*shapes, operation.result.shape]):
        for factors, length in zip(dims or (), shape, strict=True):
            known = dict(sizes or {})
            for name in factors:
                rest = math.prod(known.get(other, 1) for other in factors if other != name)
                found.setdefault(name, known.get(name, length // rest))
    return FactorRule(tuple(operands), _parse(right) or (), found, frozenset(whole.split()),
                      **options)                                    # type: ignore[arg-type]


def _parse(text: str) -> DimFactors | None:
    tokens = re.findall(r"\([^)]*\)|\S+", text)
    if tokens == ["_"]:
        return None
    return tuple([() if token == "1" else tuple(token.strip("()").split()) for token in tokens])


def letters(count: int, start: str = "a") -> list[str]:
    """Names for factors: a, b, c, …"""
    return [chr(ord(start) + i) for i in range(count)]


def to_factors(dims: Dims, factors: DimFactors, sizes: Mapping[str, int],
               mesh: Mapping[str, int]) -> tuple[dict[str, Axes], Axes]:
    """(the axes of each factor, the axes that no factor can take).

    A dimension's axes, major first, fill its factors, major first: each takes axes as long as they
    divide it.  The last one takes the rest, but behind a factor that is not full none takes any.
    """
    found: dict[str, Axes] = {}
    over: list[str] = []
    for axes, parts in zip(dims, factors):
        left = list(axes)
        for name in parts[:-1]:
            room, taken = sizes[name], []
            while left and room > 1 and room % mesh[left[0]] == 0:
                room //= mesh[left[0]]
                taken.append(left.pop(0))
            found[name] = tuple(taken)
            if room > 1:                    # not full: what comes after it would not be contiguous
                over += left
                left = []
                found |= {other: () for other in parts if other not in found}
                break
        else:
            if parts:
                found[parts[-1]] = tuple(left)
            else:
                over += left
    return found, tuple(over)


def to_dims(by_factor: Mapping[str, Axes], factors: DimFactors, sizes: Mapping[str, int],
            mesh: Mapping[str, int]) -> Dims:
    """The axes of each dimension: those of its factors, up to the first that is not cut fully."""
    dims: list[Axes] = []
    for parts in factors:
        axes: tuple[str, ...] = ()
        for name in parts:
            own = by_factor.get(name, ())
            axes += own
            if math.prod(mesh[axis] for axis in own) < sizes[name]:
                break
        dims.append(axes)
    return tuple(dims)


def fits(by_factor: Mapping[str, Axes], factors: DimFactors, sizes: Mapping[str, int],
         mesh: Mapping[str, int]) -> bool:
    """True if dimensions of these factors can be cut by these axes without losing one."""
    back, over = to_factors(to_dims(by_factor, factors, sizes, mesh), factors, sizes, mesh)
    names = [name for parts in factors for name in parts]
    return not over and all(back[name] == by_factor.get(name, ()) for name in names)


def flat_names(factors: Sequence[Factors] | None) -> list[str]:
    """The factors of all dimensions in a row."""
    return [name for parts in factors or () for name in parts]
