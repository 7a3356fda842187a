"""Sweeps: `make test` takes every k-th case, `make test-all` all of them."""

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """The cases of a parametrized test, of which all but every `step`-th are marked slow."""
    found = []
    for i, case in enumerate(cases):
        known = case if isinstance(case, type(pytest.param(0))) else pytest.param(case)
        found.append(known if i % step == 0 else pytest.param(
            *known.values, id=known.id, marks=[*known.marks, pytest.mark.slow]))
    return found
