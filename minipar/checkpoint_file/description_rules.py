"""Rules for values read from a file: a table gives a rule for each name.

    TABLE = {"step": whole(0), "dtype": one_of("float32", "float64"), "losses": [REAL],
             "scaler?": {"scale": REAL}}

    fault({"step": -1, …}, TABLE)       "step is -1, not a whole number of at least 0"

A rule is a Rule, a list of one rule (for a list whose values all obey it), or a table like this one
(for a record inside).  A name that ends in ? may be missing, or null.  A value whose name is not in
the table is not checked.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SHOWN = 40              # characters of a wrong value


@dataclass(frozen=True)
class Rule:
    """One rule for a value: `allows(value)` decides, `expected` says in words what it may be."""

    expected: str
    allows: Callable[[Any], bool]


Table = dict[str, "Rule | list | Table"]


def is_number(value: Any) -> bool:
    """True for a float, or an int of at most 64 bits; False for a bool and all else."""
    return isinstance(value, float) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63)


def whole(least: int, most: float = math.inf) -> Rule:
    """The rule for an int from `least` to `most`."""
    limits = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
    return Rule(f"a whole number {limits}", lambda value: is_number(value)
                and isinstance(value, int) and least <= value <= most)


def number(least: float, most: float = math.inf) -> Rule:
    """The rule for a finite int or float from `least` to `most`."""
    limits = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
    return Rule(f"a number {limits}", lambda value: is_number(value) and value < math.inf
                and least <= value <= most)


def one_of(*values: Any) -> Rule:
    """The rule for one of these values, of the same type."""
    return Rule(f"one of {', '.join(map(str, values))}",
                lambda value: any(value == known and type(value) is type(known)
                                  for known in values))


REAL = Rule("a number", is_number)          # NaN and infinity too
TEXT = Rule("a text", lambda value: isinstance(value, str))
FLAG = Rule("true or false", lambda value: isinstance(value, bool))
RECORD = Rule("a record of names and values", lambda value: isinstance(value, dict))


def fault(value: Any, rule: Rule | list | Table, name: str = "") -> str:
    """A few words on one fault of the value, which is called `name`; "" if it obeys the rule."""
    if isinstance(rule, Rule):
        is_wrong, expected = not rule.allows(value), rule.expected
    else:
        is_wrong = not isinstance(value, type(rule))
        expected = RECORD.expected if isinstance(rule, dict) else "a list"
    if is_wrong:
        shown = repr(value)
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
        return f"{name or 'it'} is {shown}, not {expected}"
    if isinstance(rule, list):
        parts = [(f"{name}[{i}]", part, rule[0]) for i, part in enumerate(value)]
    elif isinstance(rule, dict):
        parts = []
        for key, inner in rule.items():
            key, is_optional = key.removesuffix("?"), key.endswith("?")
            if key not in value and not is_optional:
                return f"{name or 'it'} has no {key}"
            if not (is_optional and value.get(key) is None):
                parts.append((f"{name}.{key}" if name else key, value[key], inner))
    else:
        parts = []
    return next((found for part, inside, inner in parts
                 if (found := fault(inside, inner, part))), "")
