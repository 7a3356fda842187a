"""Arguments and results as a tree of plain JSON and a list of arrays, and back.

    (x, [y, 3])   ─▶   {"tuple": [{"array": "0"}, {"list": [{"array": "1"}, {"plain": 3}]}]},
                       {"0": x, "1": y}

Only None, bools, numbers, texts, arrays, and lists, tuples and dicts of these can travel.
"""

from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
MAX_DEPTH = 12


def encode(value: Any, arrays: Arrays, depth: int = 0) -> dict[str, Any]:
    """The tree of a value; its arrays are added to `arrays`.  Raises TypeError for another type."""
    if depth > MAX_DEPTH:
        raise TypeError(f"a value may be nested {MAX_DEPTH} deep, not deeper")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return {"float": repr(value)} if isinstance(value, float) else {"plain": value}
    if isinstance(value, np.ndarray):
        name = str(len(arrays))
        arrays[name] = value
        return {"array": name}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [encode(part, arrays, depth + 1) for part in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: encode(part, arrays, depth + 1) for key, part in value.items()}}
    raise TypeError(f"a {type(value).__name__} cannot be an argument or a result: arrays, numbers, "
                    "texts, and lists, tuples and dicts of these can")


def decode(tree: Any, arrays: Arrays, depth: int = 0) -> Any:
    """The value of a tree.  Raises ValueError if it is not one."""
    if depth > MAX_DEPTH or not isinstance(tree, dict) or len(tree) != 1:
        raise ValueError("not a tree of values")
    [(kind, content)] = tree.items()
    if kind == "plain" and (content is None or isinstance(content, bool | int)):
        return content
    if kind == "plain" and isinstance(content, str):
        return content
    if kind == "float" and isinstance(content, str):
        return float(content)
    if kind == "array" and isinstance(content, str) and content in arrays:
        return arrays[content]
    if kind in ("list", "tuple") and isinstance(content, list):
        parts = [decode(part, arrays, depth + 1) for part in content]
        return parts if kind == "list" else tuple(parts)
    if kind == "dict" and isinstance(content, dict):
        return {key: decode(part, arrays, depth + 1) for key, part in content.items()}
    raise ValueError("not a tree of values")
