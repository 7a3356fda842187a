"""The workbench: functions cut out of the work tree, and what is kept so that nothing gets lost.

    .exercises/NAME.reference.py    the function as it was; while it is here, NAME is started
               NAME.yours.py        what you had written when the reference came back
               NAME.passed.py       what you had written when it last passed

A file is written beside its place and then moved there: whoever reads sees the old or the new one.
"""

import os
import shutil
from pathlib import Path

from . import manifest, surgery
from .manifest import Exercise, Refusal


class Workbench:
    """The exercises of the work tree `root`.  Raises Refusal if it is no source checkout."""

    def __init__(self, root: Path):
        self.root = root
        self.exercises = manifest.load(root)
        tests = {test.split("::")[0] for e in self.exercises.values() for test in e.tests}
        missing = sorted(test for test in tests if not (root / test).exists())
        if missing:
            raise Refusal(f"there is no {missing[0]} in {root}: exercises need a source checkout "
                          "(git clone, then pip install -e '.[dev]')")

    def find(self, name: str) -> Exercise:
        """An exercise by name; see `manifest.find`."""
        return manifest.find(self.exercises, name)

    def kept(self, exercise: Exercise, what: str) -> Path:
        """Where the reference, yours or passed version of an exercise's function is kept."""
        return self.root / ".exercises" / f"{exercise.name}.{what}.py"

    def is_started(self, exercise: Exercise) -> bool:
        """Whether the function in the work tree is the learner's."""
        return self.kept(exercise, "reference").exists()

    def state(self, exercise: Exercise) -> str:
        """reference, started or passed."""
        passed = self.kept(exercise, "passed")
        if not self.is_started(exercise):
            return "passed" if passed.exists() else "reference"
        try:
            same = passed.exists() and read(passed).rstrip("\n") == self.block(exercise)
        except Refusal:
            same = False
        return "passed" if same else "started"

    def block(self, exercise: Exercise) -> str:
        """The function as it stands in the work tree.

        Raises Refusal if it is not there, or if its file is not Python (with the line).
        """
        text = self._read_source(exercise)
        return surgery.cut(text, self._locate(exercise, text))

    def lines(self, exercise: Exercise) -> tuple[int, int]:
        """The first and the last line of the function, counted from 1."""
        rows = self._locate(exercise, self._read_source(exercise))
        return rows.first + 1, rows.end

    def reference(self, exercise: Exercise) -> str:
        """The function as it was before the exercise was started."""
        kept = self.kept(exercise, "reference")
        return read(kept).rstrip("\n") if kept.exists() else self.block(exercise)

    def start(self, exercise: Exercise) -> None:
        """Put a stub in the place of the function."""
        if self.is_started(exercise):
            raise Refusal(f"{exercise.name} is started already: write it in "
                          f"{self.place(exercise)}; to begin again, restore {exercise.name} first")
        text = self._read_source(exercise)
        rows = self._locate(exercise, text)
        self._keep(exercise, "reference", surgery.cut(text, rows))
        stub = surgery.stub(text, rows, exercise)
        write(self.root / exercise.file, surgery.replace_block(text, rows, stub))

    def restore(self, exercise: Exercise) -> Path:
        """Bring the reference back; return where the learner's version is kept."""
        if not self.is_started(exercise):
            raise Refusal(f"{exercise.name} is not started: there is nothing to restore")
        text, reference = self._read_source(exercise), self.reference(exercise)
        try:
            rows = surgery.locate(text, exercise.function)
        except SyntaxError:
            rows = surgery.guess(text, exercise.function)
        if rows is None:
            raise Refusal(f"{exercise.file} has no {exercise.function} any more: put the function "
                          f"in {self.kept(exercise, 'reference')} back in its place yourself")
        yours = self._keep(exercise, "yours", surgery.cut(text, rows))
        restored = surgery.replace_block(text, rows, reference)
        try:
            surgery.parse_file(restored, exercise.file)
        except Refusal as refusal:
            raise Refusal(f"{refusal} (not in {exercise.function}: mend this line first)") from None
        write(self.root / exercise.file, restored)
        self.kept(exercise, "reference").unlink()
        return yours

    def keep_passed(self, exercise: Exercise) -> None:
        """Remember that the function as it stands has passed."""
        self._keep(exercise, "passed", self.block(exercise))

    def place(self, exercise: Exercise) -> str:
        """Where the function begins, as file:line, or the file alone while it is not Python."""
        try:
            return f"{exercise.file}:{self.lines(exercise)[0]}"
        except Refusal:
            return exercise.file

    def grafts(self, but: Exercise) -> dict[str, list[tuple[str, str]]]:
        """By file, the references of all started exercises except one: it is judged alone.

        The file of that one is there in any case.
        """
        grafts: dict[str, list[tuple[str, str]]] = {but.file: []}
        for exercise in self.exercises.values():
            if self.is_started(exercise) and exercise is not but:
                self.block(exercise)                    # refuses a file that is not Python
                grafts.setdefault(exercise.file, []).append(
                    (exercise.function, self.reference(exercise)))
        return grafts

    def _keep(self, exercise: Exercise, what: str, block: str) -> Path:
        path = self.kept(exercise, what)
        path.parent.mkdir(exist_ok=True)
        write(path, block + "\n")
        return path

    def _read_source(self, exercise: Exercise) -> str:
        try:
            return read(self.root / exercise.file)
        except FileNotFoundError:
            raise Refusal(f"{exercise.name}: {exercise.file} is gone; git checkout brings it "
                          "back") from None
        except UnicodeDecodeError as error:
            raise Refusal(f"{exercise.file} is not UTF-8 ({error}): save it as UTF-8") from None

    def _locate(self, exercise: Exercise, text: str) -> surgery.Rows:
        surgery.parse_file(text, exercise.file)
        rows = surgery.locate(text, exercise.function)
        if rows is None:
            raise Refusal(f"{exercise.name}: {exercise.file} has no function {exercise.function} "
                          "with a body of its own lines; was it renamed? (git diff tells)")
        return rows


def read(path: Path) -> str:
    """The text of a file, byte for byte."""
    return path.read_bytes().decode("utf-8")


def write(path: Path, text: str) -> None:
    """Replace a file in one step, keeping its permissions."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(text.encode("utf-8"))
        if path.exists():
            shutil.copymode(path, draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
