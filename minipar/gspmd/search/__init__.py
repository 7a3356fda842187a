"""Automatic sharding: the cheapest annotations of a program, found instead of written.

    machine.py      what arithmetic and messages cost
    choices.py      how each operation may be cut, and where its result lies then
    ilp.py          the choice, as an integer linear program

Zheng et al. 2022 (Alpa), the inner level.
"""

from .ilp import Problem, SearchError, make_problem, search
from .machine import Machine, memory_bytes, program_seconds

__all__ = ["Machine", "Problem", "SearchError", "make_problem", "memory_bytes", "program_seconds",
           "search"]
