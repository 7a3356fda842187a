"""GSPMD: derive each rank's program from a one-device program and a few annotations.

    function ──trace──▶ Graph ──propagate──▶ Shardings ──partition──▶ LocalProgram ──▶ ranks

SPMD, single program, multiple data: the same program runs on many devices, each on its own data.
The G is for general.

    spec.py         PartitionSpec: the axes of each dimension
    graph.py        the traced program: values and operations
    constrain.py    an annotation within the program
    rules/          factor rules: which dimensions of operands and result are the same
    propagate.py    from the shardings of a few annotated values to those of all values
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
from .shard import ShardedFunction, ShardingPlan, plan, shard
from .shard_map import shard_map
from .sharded_tensor import ShardedTensor, distribute, sharded
from .spec import P, PartitionSpec

__all__ = ["P", "PartitionSpec", "ShardingPlan", "ShardedFunction", "ShardedTensor", "constrain",
           "distribute", "partition", "plan", "propagate", "shard", "shard_map", "sharded", "trace"]
