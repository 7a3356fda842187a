"""Sweeps: `make test` takes every k-th case, `make test-all` all of them.

What is left out repeats a kind that stays: another seed, another mesh of axes that others combine.
"""

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """The cases of a parametrized test, of which all but every `step`-th are marked slow."""
    found = []
    for i, case in enumerate(cases):
        known = case if isinstance(case, type(pytest.param(0))) else pytest.param(
            *case if isinstance(case, tuple) else (case,))
        found.append(known if i % step == 0 else pytest.param(
            *known.values, id=known.id, marks=[*known.marks, pytest.mark.slow]))
    return found


def every_mesh(step: int, names: Iterable[str]) -> list[Any]:
    """Every strategy alone, and every `step`-th of those on a mesh (`dp 2 × tp 2`)."""
    names = list(names)
    kept = [name for name in names if "×" not in name]
    kept += [name for name in names if "×" in name][::step]
    return [pytest.param(name, marks=[pytest.mark.slow] * (name not in kept)) for name in names]
