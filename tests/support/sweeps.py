"""Sweeps: `make test` takes a cover of each test's cases, `make test-all` all of them.

A test with several parameters runs on their product.  A cover has each value of each parameter at
least once, for simulated ranks and for real ones:

            sim-1  sim-2  sim-3  mpi-4              a test with one list of cases keeps all of them:
    float32   x             x      x                each is a check of its own, unless `every` or
    float64          x                              `every_mesh` says that they repeat a kind

`@pytest.mark.one_in(n)` before a test says that its cases, even those of a cover, repeat a kind:
`make test` takes every n-th of them, in each world.  Of a test in both worlds it takes every second
case on real ranks: each costs the time of four processes, and simulated ranks have them all.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from minipar.testing.worlds import ranks_needed


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


def mark_repetitions(items: Iterable[pytest.Item]) -> None:
    """Mark as slow what a cover of each test's cases leaves out."""
    cases = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0], ranks_needed(item) is None].append(item)
    for (name, is_serial), group in cases.items():
        mark = group[0].get_closest_marker("one_in")
        step = mark.args[0] if mark else 1
        if not is_serial and (name, True) in cases:
            step *= 2
        kept = sorted(cover([item.callspec._idlist for item in group]))[::step]
        for i, item in enumerate(group):
            if i not in kept:
                item.add_marker(pytest.mark.slow)


def cover(rows: Sequence[Sequence[str]]) -> set[int]:
    """The numbers of rows that show each value of each column; the next one shows most new ones."""
    values = [set(enumerate(row)) for row in rows]
    missing, kept = set().union(*values), set()
    while missing:
        best = max(range(len(rows)), key=lambda i: (len(values[i] & missing), -i))
        kept.add(best)
        missing -= values[best]
    return kept
