"""GSPMD: a program for one device, a few annotations, and the rest follows.

    function ──trace──▶ Graph ──propagate──▶ Shardings ──partition──▶ LocalProgram ──▶ ranks

    spec.py         PartitionSpec: the axes of each dimension
    graph.py        the traced program: values and operations
    constrain.py    an annotation within the program
    rules/          which dimensions of an operation are the same (factor rules), one table
    propagate.py    from a few annotated values to all
    reshard.py      the cheapest collectives between two layouts
    partition.py    the local program, with its collectives
    local_call.py   what a rank calls for an operation on its pieces
    execute.py      a rank runs the local program (padding.py: dimensions that do not divide)
    shard.py        all of it in one call; parameters and slabs

Xu et al. 2021 (GSPMD, arXiv 2105.04663); OpenXLA's Shardy.
"""

from .constrain import constrain
from .graph import trace
from .partition import partition
from .propagate import propagate
from .shard import Plan, ShardedFunction, plan, shard
from .spec import P, PartitionSpec

__all__ = ["P", "PartitionSpec", "Plan", "ShardedFunction", "constrain", "partition", "plan",
           "propagate", "shard", "trace"]
