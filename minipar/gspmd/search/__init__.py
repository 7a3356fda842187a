"""Automatic sharding: the cheapest annotations of a program, found instead of written.

    machine.py      what arithmetic and messages cost
    choices.py      how each operation may be cut, and the layout of its result then
    ilp.py          the choice, as an integer linear program

This is the inner level of Alpa (Zheng et al. 2022).
"""

from .ilp import Problem, SearchError, make_problem, search
from .machine import Machine, memory_bytes, program_seconds

__all__ = ["Machine", "Problem", "SearchError", "make_problem", "memory_bytes", "program_seconds",
           "search"]
