"""Revolve: the fewest forward steps for a chain of equal steps, if c inputs fit in memory.

    snapshots   x0 ┄┄┄┄┄┄┄┄┄ x3 ┄┄┄┄┄┄┄┄        c = 2: two inputs are kept, x0 among them
    steps          0  1  2      3  4  5         backward of 5, 4 and 3 comes first; then the place
                                                of x3 is free, and holds x1 for steps 2 and 1

Only one step at a time keeps what it saves for backward.  If every step may run up to r times
before its run for backward, c snapshots suffice for chains of L ≤ C(c+r, c) steps.  With the least
such r, reversing a chain takes

    r L - C(c+r, r-1)        forward steps besides the L for backward; no plan has fewer

Griewank & Walther, Algorithm 799: revolve (2000), proposition 1.
"""

from math import comb

from .plans import Plan


def revolve_steps(length: int, snapshots: int) -> int:
    """The forward steps of `revolve`, besides the `length` steps that save for backward.

    Raises ValueError for fewer than one step or snapshot.
    """
    r = _repetitions(length, snapshots)
    return r * length - (comb(snapshots + r, r - 1) if r else 0)


def revolve(length: int, snapshots: int, start: int = 0) -> Plan:
    """The plan of `length` equal parts, numbered from `start`, with `revolve_steps` extra steps.

    Raises ValueError for fewer than one step or snapshot.
    """
    r = _repetitions(length, snapshots)
    if length == 1:
        return (start,)
    # The right side has one snapshot less, the left side one repetition less.
    first = max(1, comb(snapshots + r - 2, snapshots), length - comb(snapshots + r - 1, r))
    rest = revolve(length - first, max(1, snapshots - 1), start + first)
    return (revolve(first, snapshots, start), *rest)


def _repetitions(length: int, snapshots: int) -> int:
    """The least r with C(c+r, c) ≥ L."""
    if length < 1 or snapshots < 1:
        raise ValueError(f"revolve: {length} steps with {snapshots} snapshots: give at least one "
                         "of each (the input is a snapshot)")
    r = 0
    while comb(snapshots + r, snapshots) < length:
        r += 1
    return r
