"""The teacher of `minipar distill`, from its checkpoint: plain, pruned or quantized.

Whether it can be cut over ranks is tried on shapes, before numbers are read.

    description ─▶ build_teacher ─▶ shapes, for the recipe and for ranks that only learn
    and arrays  ─▶ load_teacher  ─▶ the model that runs
"""

import argparse

from ...checkpoint import Checkpoint
from ...comm import Cluster
from ...compress.load import compression_steps, load_model
from ...nn import Module
from ...nn.chain import chain
from ...parallel.pipeline.stages import cut_evenly
from ...parallel.tensor.apply import parallelize
from ..model_checkpoints import task_of


def check_split(saved: Checkpoint, options: argparse.Namespace) -> None:
    """Cut a teacher without numbers, to see if it can be.  Raises ValueError."""
    if options.teacher_ranks and any(step["kind"] == "quantized"
                                     for step in compression_steps(saved)):
        raise ValueError(f"{options.teacher} is quantized, which is not cut over ranks: leave "
                         "--teacher-ranks out, or give the model that it was made from")
    if options.teacher_ranks and options.teacher_split == "pp":
        cut_evenly([1] * len(chain(build_teacher(saved))), options.teacher_ranks)
    elif options.teacher_ranks:
        Cluster(options.teacher_ranks).run(lambda comm: parallelize(build_teacher(saved), comm))


def build_teacher(saved: Checkpoint) -> Module:
    """The teacher, without numbers."""
    return task_of(saved).build()


def load_teacher(saved: Checkpoint) -> Module:
    """The teacher with its numbers."""
    return load_model(saved, build_teacher(saved))
