"""`minipar milestone NAME`: train a GPT on four ranks with your own functions in place.

    minipar milestone               all milestones: what each needs, and which are reached
    minipar milestone ring          train, compare with the reference, draw out/milestones/ring.png

The reference is minipar as it was before you began.
"""

from dataclasses import dataclass
from pathlib import Path

from ... import viz
from ...environment import minipar_command
from ...launcher import UsageError
from ...school.course.milestones.attempt import Attempt, Version, attempt
from ...school.course.milestones.goal import (
    Milestone,
    find,
    milestones,
    missing,
    note_reached,
    reached,
)
from ...school.exercises.workspace import Workspace
from ...train.option import CommandOptions, option, out_folder
from ..tables import Column, Output, Shown, Table

ROOT = Path(__file__).resolve().parents[3]
CONTROL = "control"             # bookkeeping, which the picture leaves out


def main(options: "Options", output: Output) -> int:
    """List the milestones, or try to reach one; 1 if it is not reached.  Raises SchoolError."""
    workspace = Workspace(ROOT)
    if options.name is None:
        show_all(workspace, output)
        return 0
    return reach(workspace, find(options.name), options.out, output)


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    name: str | None = option(None, f"one of {', '.join(milestones())}; without it, list them",
                              metavar="NAME", is_positional=True)
    out: Path = out_folder("folder of the picture", Path("out/milestones"))


def show_all(workspace: Workspace, output: Output) -> None:
    """A table of the milestones."""
    table = Table.of("milestones", "milestone", Column("title", is_text=True),
                     Column("exercises", is_text=True), Column("", is_text=True))
    done = reached(workspace.root)
    for name, milestone in milestones().items():
        todo = missing(workspace, milestone)
        state = "reached" if done[name] else (
            f"{len(todo)} of {len(milestone.exercises)} still to write" if todo else "try it")
        table.add(name, milestone.title,
                  Shown(milestone.exercises, "\n".join(milestone.exercises)), state)
    table.sections = list(range(len(table.rows)))
    output.table(table)


def reach(workspace: Workspace, milestone: Milestone, out: Path, output: Output) -> int:
    """Train and compare; return the exit status.  Raises UsageError if exercises are missing."""
    todo = missing(workspace, milestone)
    if todo:
        raise UsageError(f"milestone {milestone.name} trains with your own functions; still to "
                         f"write: {', '.join(todo)}.  To begin: "
                         + minipar_command(f"exercise start {todo[0]}"))
    output.text(f"{milestone.title}. {milestone.history}", "",
                f"Training a GPT on four simulated ranks with your "
                f"{', '.join(milestone.exercises)} …", "")
    attempts = [attempt(workspace, milestone, run) for run in milestone.runs]
    table = Table.of("", "run", "loss", "reference", Column("sent", "B"), Column("reference", "B"),
                     Column("", is_text=True))
    for tried in attempts:
        table.add(tried.name, last_loss(tried.own), last_loss(tried.reference),
                  sum(sent_in_a_step(tried.own).values()),
                  sum(sent_in_a_step(tried.reference).values()),
                  "the same" if tried.passed else "differs")
    output.table(table)
    for tried in attempts:
        explain(tried, output)
    output.file(out / f"{milestone.name}.png", viz.draw_milestone,
                f"{milestone.title}: four ranks", [drawn(tried) for tried in attempts])
    if not all(tried.passed for tried in attempts):
        return 1
    note_reached(workspace, milestone)
    output.text("", f"Reached. {milestone.now}")
    return 0


def explain(tried: Attempt, output: Output) -> None:
    """Say where a run differs, and which functions differ when they are tried alone."""
    if tried.passed:
        return
    output.text(f"✗ {tried.name}: {tried.difference}")
    for name, difference in tried.culprits.items():
        output.text(f"    {name} alone in the reference: {difference}",
                    f"    its tests tell more: {minipar_command(f'exercise check {name}')}")
    if not tried.culprits:
        output.text("    each of your functions alone gives the reference's run: they do not fit "
                    "together")
    output.text("")


def last_loss(version: Version) -> float | None:
    """The loss of the last step; None if there was none."""
    return version.steps[-1].loss if version.steps else None


def sent_in_a_step(version: Version) -> dict[str, int]:
    """Bytes that all ranks sent in the last step, by collective, without control messages."""
    sums: dict[str, int] = {}
    for sent in version.steps[-1].sent if version.steps else ():
        for label, (num_bytes, _) in sent.items():
            if label != CONTROL:
                name = label if label.isidentifier() else "pipeline"
                sums[name] = sums.get(name, 0) + num_bytes
    return sums


def drawn(tried: Attempt) -> "viz.MilestoneRun":
    """An attempt as the picture shows it."""
    return viz.MilestoneRun(
        tried.name, [step.loss for step in tried.reference.steps],
        [step.loss for step in tried.own.steps], sent_in_a_step(tried.reference),
        sent_in_a_step(tried.own), tried.passed)
