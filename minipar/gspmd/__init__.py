"""GSPMD: a program for one device, a few annotations, and the rest follows.

    function ──trace──▶ Graph ──propagate──▶ Shardings ──partition──▶ LocalProgram ──▶ ranks

    spec.py         PartitionSpec: the axes of each dimension
    graph.py        the traced program: values and operations
    constrain.py    an annotation within the program
    rules/          which dimensions of an operation are the same (factor rules), one table
    propagate.py    from a few annotated values to all
    partitioning/   the local program, with the cheapest collectives
    execution/      a rank runs the local program
    shard.py        all of it in one call; parameters and slabs

Xu et al. 2021 (GSPMD, arXiv 2105.04663); OpenXLA's Shardy.
"""

from .constrain import constrain
from .graph import trace
from .partitioning.partition import partition
from .propagate import propagate
from .shard import Plan, ShardedFunction, plan, shard
from .spec import P, PartitionSpec

__all__ = ["P", "PartitionSpec", "Plan", "ShardedFunction", "constrain", "partition", "plan",
           "propagate", "shard", "trace"]
