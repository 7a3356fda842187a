"""`minipar compare`: is it a bug or rounding?  The first array in which two layouts differ.

    minipar compare --right pp=2,tp=2                   beside one process, --left dp=1
    minipar compare --left dp=4 --right dp=2,tp=2 --strategy zero1 --steps 3
    minipar compare --right dp=2 --strategy FILE.py:CLASS --config run.toml
    minipar compare left.trace right.trace              recorded by `train --set run.record=DIR`

The exit status is 0 if they are equal or differ by rounding, 1 if they are different.  It is 2 for
a mistake of the user, and for a program that fails: nothing was compared.
"""

import argparse
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import viz
from ..comm import Cluster, Communicator
from ..compare_runs.difference import Difference, compare_recordings
from ..compare_runs.recorder import read
from ..environment import launched
from ..launcher import UsageError, errors_as_usage, launch
from ..train.command_line import add_flag, given
from ..train.config import OPTIONS, TrainConfig
from ..train.config_file import read_config, read_setting
from ..train.recipes.side_by_side import compare_layouts, layout, ranks_of
from .tables import Column, Output, Table

FLAGS = ("strategy", "schedule", "microbatches", "sequence_parallel", "data", "batch", "layers",
         "width", "context", "dropout", "dtype", "precision")        # also of `minipar train`
SHOWN = 10              # places in the table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("recordings", nargs="*", type=Path, metavar="TRACE",
                        help="two recordings, files or folders, in the place of two layouts")
    parser.add_argument("--left", metavar="AXIS=N,…", help="the mesh that is trusted (dp=1)")
    parser.add_argument("--right", metavar="AXIS=N,…", help="the mesh that is looked at")
    parser.add_argument("--exact", type=Path, metavar="TRACE",
                        help="the left recording once more, in float64: rounding is measured by it")
    parser.add_argument("--steps", type=int, metavar="N", help="steps to compare (3)")
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
    with errors_as_usage(), failures_told():
        found = run(options)
    if found is None:                   # not on rank 0
        return 0
    output.file(options.png, viz.draw_difference, found)
    output.table(table(found), show=found.verdict == "different")
    output.table(in_words(found), show=False)
    output.text(str(found))
    return int(found.verdict == "different")


def run(options: argparse.Namespace) -> Difference | None:
    """The comparison that the options ask for; None on all ranks of mpirun but rank 0."""
    if options.recordings or options.exact:
        return recordings(options)
    if options.right is None:
        raise UsageError("compare which layout? Give its mesh, --right pp=2,tp=2, or two "
                         "recordings")
    steps = 3 if options.steps is None else options.steps
    if steps < 1:
        raise UsageError(f"--steps must be at least 1, not {steps}")
    left, right = configs(options, steps)
    ranks = max(ranks_of(left), ranks_of(right))
    world = launched()
    if world and world.size < ranks:
        raise UsageError(f"--left and --right are for up to {ranks} ranks, but {world} started "
                         f"{world.size}: start mpirun -n {ranks}, or leave mpirun out")
    try:
        return launch(lambda comm: compared(comm, left, right, steps), cluster=Cluster(ranks))
    except SystemExit as error:             # a deadlock, reported already: no difference was found
        raise SystemExit(2 if error.code == 1 else error.code) from error


def recordings(options: argparse.Namespace) -> Difference:
    """The comparison of two recordings.  Raises UsageError, also if options of a run are given."""
    if len(options.recordings) != 2:
        raise UsageError("compare takes two recordings, or --right with a mesh: give "
                         "LEFT.trace RIGHT.trace, or --right pp=2,tp=2")
    others = {"left", "right", "steps", "config", "set"}
    for name, value in vars(options).items():
        if name in FLAGS or name in others and value:
            raise UsageError(f"--{name.replace('_', '-')} shapes a layout, and recordings are as "
                             "they were recorded: leave it out")
    return compare_recordings(*map(read, options.recordings),
                              read(options.exact) if options.exact else [])


def compared(comm: Communicator, left: TrainConfig, right: TrainConfig, steps: int
             ) -> Difference | None:
    """Collective.  `compare_layouts`; an error in the user's strategy is shown with its traceback.
    """
    with failures_told(right.parallel.strategy.rpartition(":")[0]):
        return compare_layouts(comm, left, right, steps)


@contextmanager
def failures_told(file: str = "") -> Iterator[None]:
    """Context in which a failure becomes a UsageError with its traceback, and so exit status 2.

    A ValueError that does not come from `file` is a mistake of the user: it passes unchanged,
    and is reported in one line.
    """
    try:
        yield
    except (UsageError, OSError, MemoryError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        is_own = file and any(Path(frame.filename).resolve() == Path(file).resolve()
                              for frame in frames)
        if isinstance(error, ValueError) and not is_own:
            raise
        raise UsageError("the program failed, so there is nothing to compare:\n"
                         f"{traceback.format_exc()}".rstrip()) from error


def configs(options: argparse.Namespace, steps: int) -> tuple[TrainConfig, TrainConfig]:
    """The configurations of left and right: the same run on two meshes.  Raises UsageError."""
    values = read_config(options.config) if options.config else {}
    for text in options.set:
        values |= read_setting(text)
    config = TrainConfig().updated(**values | given(options, FLAGS) | {"steps": steps})
    return layout(config, options.left or "dp=1"), layout(config, options.right)


def table(found: Difference) -> Table:
    """The first arrays that differ; if none does, those nearest to what rounding allows."""
    made = Table.of(found.verdict, Column("step"), "phase", "array", "ranks",
                    Column("relative difference"), Column("over rounding"))
    largest = sorted(found.low_gaps or found.gaps, key=lambda gap: -gap.ratio)
    for gap in (found.places or largest)[:SHOWN]:
        step, phase, name = gap.key
        made.add(step, phase, name, ", ".join(map(str, gap.ranks)) + " (left)" * (
            gap.side == "left"), gap.distance, gap.ratio)
    return made


def in_words(found: Difference) -> Table:
    """The verdict in a row, for scripts: the sentence, the cause, and the largest differences."""
    made = Table.of("verdict", "verdict", Column("sentence", is_text=True),
                    Column("cause", is_text=True), Column("dtype", is_text=True),
                    Column("difference in float64", "relative"), Column("most over rounding"),
                    Column("arrays compared"), Column("outputs left out"))
    low = found.low_gaps or found.gaps
    made.add(found.verdict, str(found), found.cause or None, found.dtype,
             found.distance if found.gaps else None, max(gap.ratio for gap in low), len(low),
             len(found.left_out))
    return made
