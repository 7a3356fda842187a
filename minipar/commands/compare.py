"""`minipar compare`: is it a bug or rounding?  The first array in which two layouts differ.

    minipar compare --right pp=2,tp=2                   beside one process, --left dp=1
    minipar compare --left dp=4 --right dp=2,tp=2 --strategy zero1 --steps 3
    minipar compare --right dp=2 --strategy FILE.py:CLASS --config run.toml
    minipar compare left.trace right.trace              recorded by `train --set run.record=DIR`

The exit status is 0 if they are equal or differ by rounding, 1 if they are different.
"""

import argparse
from pathlib import Path

from .. import viz
from ..comm import Cluster
from ..compare.difference import Difference, compare_recordings
from ..compare.recorder import read
from ..environment import launched
from ..launcher import UsageError, errors_as_usage, launch
from ..train.config import OPTIONS, TrainConfig
from ..train.config_file import read_config, read_setting
from ..train.flags import add_flag, given
from ..train.recipes.side_by_side import compare_layouts, layout, ranks_of
from .tables import Column, Output, Table

FLAGS = ("strategy", "schedule", "microbatches", "sequence_parallel", "data", "batch", "layers",
         "width", "context", "dropout", "dtype", "precision")        # of `minipar train`, too
SHOWN = 10              # places in the table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("recordings", nargs="*", type=Path, metavar="TRACE",
                        help="two recordings, files or folders, in the place of two layouts")
    parser.add_argument("--left", metavar="AXIS=N,…", help="the mesh that is right (dp=1)")
    parser.add_argument("--right", metavar="AXIS=N,…", help="the mesh that is looked at")
    parser.add_argument("--exact", type=Path, metavar="TRACE",
                        help="the left recording once more, in float64: rounding is measured by it")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="steps to compare (3)")
    for key in FLAGS:
        if key in OPTIONS and OPTIONS[key].option.is_flag:
            add_flag(parser, OPTIONS[key])
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE",
                        help="any option of `minipar train`; may be repeated")
    parser.add_argument("--config", type=Path, metavar="FILE",
                        help="a TOML file with options of `minipar train`")
    parser.add_argument("--png", type=Path, metavar="FILE",
                        help="draw all differences, over what rounding may do (.png, .svg or .pdf)")


def main(options: argparse.Namespace, output: Output) -> int:
    """Compare; print the verdict and the first wrong places.  Raises UsageError."""
    with errors_as_usage():
        found = run(options)
    if found is None:                   # not on rank 0
        return 0
    output.file(options.png, viz.draw_difference, found)
    output.table(table(found), show=found.verdict == "different")
    output.text(str(found))
    return int(found.verdict == "different")


def run(options: argparse.Namespace) -> Difference | None:
    """The comparison that the options ask for; on rank 0 with mpirun."""
    if options.recordings or options.exact:
        if len(options.recordings) != 2 or options.left or options.right:
            raise UsageError("compare takes two recordings, or --right with a mesh: give "
                             "LEFT.trace RIGHT.trace, or --right pp=2,tp=2")
        exact = read(options.exact) if options.exact else []
        return compare_recordings(*map(read, options.recordings), exact)
    if options.right is None:
        raise UsageError("compare which layout? Give its mesh, --right pp=2,tp=2, or two "
                         "recordings")
    if options.steps < 1:
        raise UsageError(f"--steps must be at least 1, not {options.steps}")
    left, right = configs(options)
    ranks = max(ranks_of(left), ranks_of(right))
    world = launched()
    if world and world.size < ranks:
        raise UsageError(f"--left and --right are for up to {ranks} ranks, but {world} started "
                         f"{world.size}: start mpirun -n {ranks}, or leave mpirun out")
    return launch(lambda comm: compare_layouts(comm, left, right, options.steps),
                  cluster=Cluster(ranks))


def configs(options: argparse.Namespace) -> tuple[TrainConfig, TrainConfig]:
    """The configurations of left and right: the same run on two meshes.  Raises UsageError."""
    values = read_config(options.config) if options.config else {}
    for text in options.set:
        values |= read_setting(text)
    config = TrainConfig().updated(**values | given(options, FLAGS) | {"steps": options.steps})
    return layout(config, options.left or "dp=1"), layout(config, options.right)


def table(found: Difference) -> Table:
    """The first wrong places; without one, the verdict alone."""
    made = Table.of(found.verdict, Column("step"), "phase", "array", "ranks",
                    Column("relative difference"), Column("over rounding"))
    for gap in found.places[:SHOWN]:
        step, phase, name = gap.key
        made.add(step, phase, name, ", ".join(map(str, gap.ranks)), gap.distance, gap.ratio)
    return made
