"""Automatic sharding: the cheapest annotations of a program, found instead of written.

    machine.py      what arithmetic and messages cost
    choices.py      how each operation may be cut, and where its result lies then
    ilp.py          the choice, as an integer linear program; equations.py: its matrix
    chain.py        the choice for a chain, by dynamic programming

Zheng et al. 2022 (Alpa), the inner level.
"""

from .chain import solve_chain
from .ilp import Problem, SearchError, make_problem, search
from .machine import Machine, memory_bytes, program_seconds

__all__ = ["Machine", "Problem", "SearchError", "make_problem", "memory_bytes", "program_seconds",
           "search", "solve_chain"]
