"""The teacher of `minipar distill`, from its checkpoint: plain, pruned or quantized.

    description ─▶ build_teacher ─▶ shapes, for the recipe and for ranks that only learn
    and arrays  ─▶ load_teacher  ─▶ the model that runs

`check_split` tries on such shapes whether --teacher-ranks can share the teacher.
"""

from pathlib import Path

from ...checkpoint_file import Checkpoint
from ...comm import Cluster
from ...compress.load import compression_steps, load_model
from ...nn import Module
from ...nn.chain import chain
from ...parallel.pipeline.cut_points import cut_evenly
from ...parallel.tensor.parallelize import parallelize
from ..checkpoints.models import task_of


def check_split(saved: Checkpoint, path: Path, ranks: int, split: str) -> None:
    """Try to cut the teacher from `path` over `ranks` ranks, on shapes.  Raises ValueError."""
    if not ranks:
        return
    if any(step["kind"] == "quantized" for step in compression_steps(saved)):
        raise ValueError(f"{path} is quantized, which is not cut over ranks: leave "
                         "--teacher-ranks out, or give the model that it was made from")
    if split == "pp":
        cut_evenly([1] * len(chain(build_teacher(saved))), ranks)
    else:
        Cluster(ranks).run(lambda comm: parallelize(build_teacher(saved), comm))


def build_teacher(saved: Checkpoint) -> Module:
    """The teacher without values: its parameters have shapes only."""
    return task_of(saved).build()


def load_teacher(saved: Checkpoint) -> Module:
    """The teacher with its parameters."""
    return load_model(saved, build_teacher(saved))
