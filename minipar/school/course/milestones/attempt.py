"""The learner's run beside the reference's: where they first differ, and which function it is.

    the reference    every function as minipar has it
    yours            all of the learner's functions in place
    one by one       if yours fails: each of them alone, to find the one at fault

Each run is a process with a time limit, so an endless loop ends in a report, not in a hang.
"""

import math
from pathlib import Path
from typing import NamedTuple

from ...exercises.entries import Exercise
from ...exercises.judge import run_module, tail
from ...exercises.source import Patches
from ...exercises.workspace import Workspace
from .goal import Milestone

LIMIT = 60.0            # seconds of a run; the reference takes 2 to 4
TOLERANCE = 1e-10       # relative; a different order of additions changes the last bits
NOTHING = 0, 0
SLOWER = 1.02           # times the reference's virtual seconds: some messages wait needlessly
LARGER = 1.01           # times the reference's peak: something is kept needlessly


class TrainedStep(NamedTuple):
    """A step of training, as `train.recipes.observed_run` tells it."""

    loss: float
    seconds: float
    sent: list[dict[str, tuple[int, int]]]
    peaks: list[int]


class Version(NamedTuple):
    """A run: its steps, and why it ended, if it did so early."""

    steps: list[TrainedStep]
    fault: str = ""
    frames: list[tuple[str, int]] = []          # of the fault: file and line, the innermost first


class Attempt(NamedTuple):
    """A run of a milestone: the reference, the learner's, and what is wrong with it."""

    name: str
    reference: Version
    own: Version
    difference: str = ""                        # "" if there is none
    culprits: dict[str, str] = {}               # by exercise: what goes wrong with it alone

    @property
    def passed(self) -> bool:
        """True if the learner's run equals the reference's."""
        return not self.difference


def attempt(workspace: Workspace, milestone: Milestone, run: str) -> Attempt:
    """Train the reference and the learner's version, and compare them.

    If they differ, each function is also tried alone.
    """
    own = [workspace.find(name) for name in milestone.exercises]
    options = milestone.runs[run]
    reference = train(workspace, workspace.patches([]), options)
    if reference.fault:
        raise RuntimeError(f"the reference does not train: {reference.fault}")
    yours = train(workspace, workspace.patches(own), options)
    difference = compare(reference, yours) + at_own_line(workspace, own, yours)
    culprits = {}
    if difference:
        for exercise in own:
            alone = train(workspace, workspace.patches([exercise]), options)
            found = compare(reference, alone)
            if found:
                culprits[exercise.name] = found + at_own_line(workspace, [exercise], alone)
    return Attempt(run, reference, yours, difference, culprits)


def train(workspace: Workspace, replaced: Patches, options: str) -> Version:
    """Train in a process of its own, with some functions `replaced`."""
    job = {"root": str(workspace.root), "patches": replaced, "options": options}
    ended = run_module("minipar.school.course.milestones.version", workspace.root, job, LIMIT)
    steps = [TrainedStep(line["loss"], line["seconds"], line["sent"], line["peaks"])
             for line in ended.lines if line["kind"] == "step"]
    last = ended.lines[-1] if ended.lines else {"kind": ""}
    if last["kind"] == "end":
        return Version(steps)
    if last["kind"] == "error":
        frames = [tuple(frame) for frame in (last["waiting"] or last["frames"])]
        return Version(steps, f"{last['error']}: {last['message']}", frames)
    if ended.status is None:
        return Version(steps, f"no end after {LIMIT:g} s: is there a loop whose condition stays "
                              "true?")
    return Version(steps, f"the process ended (exit status {ended.status}): {tail(ended.output)}")


def compare(reference: Version, own: Version) -> str:
    """The first difference of a version from the reference, in a sentence; "" if there is none."""
    for number, (wanted, found) in enumerate(zip(reference.steps, own.steps)):
        right, sent = in_all(wanted.sent), in_all(found.sent)
        for label in sorted({*right, *sent}):
            for what, had, should in zip(("bytes", "messages"), sent.get(label, NOTHING),
                                         right.get(label, NOTHING)):
                if had > should:
                    return (f"step {number}: {label} sends {had:,} {what}, the reference "
                            f"{should:,}")
        if not math.isclose(wanted.loss, found.loss, rel_tol=TOLERANCE):
            return (f"step {number}: the loss is {found.loss:.12g}, the reference's "
                    f"{wanted.loss:.12g}")
        for rank, (least, peak) in enumerate(zip(wanted.peaks, found.peaks)):
            if peak > LARGER * least:
                return (f"step {number}, rank {rank}: {peak:,} bytes are alive at once, the "
                        f"reference keeps {least:,}")
        if found.seconds > SLOWER * wanted.seconds:
            return (f"step {number} ends after {1e3 * found.seconds:.3g} ms of virtual time, the "
                    f"reference's after {1e3 * wanted.seconds:.3g}: a rank waits that need not")
    if own.fault:
        return f"step {len(own.steps)}: {own.fault}"
    return "" if len(own.steps) == len(reference.steps) else "it ends early"


def in_all(sent: list[dict[str, tuple[int, int]]]) -> dict[str, tuple[int, int]]:
    """(bytes, messages) that all ranks together sent in a step, by collective.

    Single ranks are not compared.  On a ring chunk 0 may be on any rank, so a rank may send an
    element more than in the reference, and another rank an element less.
    """
    sums: dict[str, tuple[int, int]] = {}
    for label, (num_bytes, messages) in (entry for rank in sent for entry in rank.items()):
        before = sums.get(label, NOTHING)
        sums[label] = before[0] + num_bytes, before[1] + messages
    return sums


def at_own_line(workspace: Workspace, own: list[Exercise], version: Version) -> str:
    """The innermost line of the learner's functions in a fault, as a clause."""
    places = {str(workspace.root / exercise.file): exercise for exercise in own
              if workspace.is_started(exercise)}
    for file, line in version.frames:
        exercise = places.get(file)
        if exercise is not None:
            first, last = workspace.lines(exercise)
            if first <= line <= last:
                text = Path(file).read_text(encoding="utf-8").split("\n")[line - 1].strip()
                return f"\n  at {exercise.file}:{line}: {text}"
    return ""
