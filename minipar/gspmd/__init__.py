"""GSPMD: derive each rank's program from a one-device program and a few annotations.

    function ──trace──▶ Graph ──propagate──▶ Shardings ──partition──▶ LocalProgram ──▶ ranks

The name is short for general and scalable parallelization for ML computation graphs.  SPMD means
one program on many devices, each with its own data.

    spec.py         PartitionSpec: the axes of each dimension
    graph.py        the traced program: values and operations
    constrain.py    an annotation within the program
    rules/          which dimensions of an operation are the same (factor rules), one table
    propagate.py    shardings of a few annotated values are propagated to all values
    partitioning/   the local program, with the cheapest collectives
    execution/      a rank runs the local program
    shard.py        all these steps in one call; parameters and slabs
    shard_map.py    a function on pieces, with collectives of its own, as one operation
    describe.py     a local program as rows, for tables and pictures
    search/         the cheapest annotations, found instead of written
    sharded_tensor.py   the eager form: one operation at a time, as PyTorch's DTensor

Xu et al. 2021 (GSPMD, arXiv 2105.04663); OpenXLA's Shardy.
"""

from .constrain import constrain
from .graph import trace
from .partitioning.partition import partition
from .propagate import propagate
from .shard import Plan, ShardedFunction, plan, shard
from .shard_map import shard_map
from .sharded_tensor import ShardedTensor, distribute, sharded
from .spec import P, PartitionSpec

__all__ = ["P", "PartitionSpec", "Plan", "ShardedFunction", "ShardedTensor", "constrain",
           "distribute", "partition", "plan", "propagate", "shard", "shard_map", "sharded", "trace"]
