"""The workspace: a learner's work tree, with stubs in it, and the functions kept beside it.

    .exercises/NAME.reference.py    the original function; while this file exists, NAME is started
               NAME.yours.py        your version at the last `restore`
               NAME.passed.py       your version that passed last, below a digest
               NAME.hint            the number of the last hint that was shown
               NAME.hidden1.….py    reference and yours of a function that NAME hides

Files are replaced atomically: written beside their place, then moved there.
"""

import hashlib
import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ..toml_files import SchoolError
from . import entries, source
from .entries import Exercise, Target

KEPT = ".exercises"


class Workspace:
    """The exercises of the work tree `root`.  Raises SchoolError if it is not a checkout."""

    def __init__(self, root: Path):
        self.root = root
        self.exercises = entries.load(root)
        entries.need_checkout(root, entries.TESTS)

    def find(self, name: str) -> Exercise:
        """An exercise by name.  Raises SchoolError, with the closest name, if there is none."""
        return entries.find(self.exercises, name)

    def kept(self, exercise: Exercise, what: str, number: int = 0) -> Path:
        """The file with the reference, yours or passed version of an exercise's function.

        `number` counts the targets: 0 is the function to write, the others are hidden.
        """
        hidden = f".hidden{number}" if number else ""
        return self.root / KEPT / f"{exercise.name}{hidden}.{what}.py"

    def is_started(self, exercise: Exercise) -> bool:
        """True if the function in the work tree is the learner's."""
        return self.kept(exercise, "reference").exists()

    def started(self) -> list[Exercise]:
        """The exercises that are started."""
        return [exercise for exercise in self.exercises.values() if self.is_started(exercise)]

    def state(self, exercise: Exercise) -> str:
        """The state of an exercise: "reference", "started" or "passed"."""
        passed = self.passed(exercise)
        if not self.is_started(exercise):
            return "reference" if passed is None else "passed"
        try:
            return "passed" if passed == self.block(exercise) else "started"
        except SchoolError:
            return "started"

    def block(self, exercise: Exercise) -> str:
        """The function as the work tree has it now.

        Raises SchoolError if it is missing, or if its file is not Python (with the line).
        """
        return self._block(exercise.targets[0])

    def lines(self, exercise: Exercise) -> tuple[int, int]:
        """The first and last line number of the function, from 1."""
        target = exercise.targets[0]
        rows = self._locate(target, self._read_source(target))
        return rows.first + 1, rows.end

    def reference(self, target: Target) -> str:
        """The original of a function, also if an exercise has replaced it."""
        for exercise in self.started():
            for number, other in enumerate(exercise.targets):
                kept = self.kept(exercise, "reference", number)
                if other == target and kept.exists():
                    return read(kept).rstrip("\n")
        return self._block(target)

    def start(self, exercise: Exercise) -> None:
        """Replace the function, and those that the exercise hides, with stubs.

        Raises SchoolError if the exercise, or another one with the same function, is started.
        """
        if self.is_started(exercise):
            raise SchoolError(f"{exercise.name} is started already: write it in "
                          f"{self.place(exercise)}; to begin again, restore {exercise.name} first")
        for other in self.started():
            for target in set(exercise.targets).intersection(other.targets):
                raise SchoolError(
                    f"{other.name} is started and also replaces {target.function} of "
                    f"{target.file}: restore {other.name} first (your version is kept)")
        texts: dict[str, str] = {}
        blocks = []
        for number, target in enumerate(exercise.targets):
            text = texts[target.file] if target.file in texts else self._read_source(target)
            rows = self._locate(target, text)
            blocks.append(source.block_at(text, rows))
            texts[target.file] = source.replace_block(
                text, rows, source.hidden_stub(text, rows, exercise) if number
                else source.stub(text, rows, exercise))
        for number in reversed(range(len(blocks))):         # number 0 last: it marks "started"
            self._keep(exercise, "reference", blocks[number], number)
        for file, text in texts.items():
            write(self.root / file, text)

    def restore(self, exercise: Exercise) -> Path:
        """Put the references back; return the file with the learner's version.

        Raises SchoolError if the exercise is not started, or the function is not found any more.
        """
        if not self.is_started(exercise):
            raise SchoolError(f"{exercise.name} is not started: there is nothing to restore")
        texts: dict[str, str] = {}
        for number, target in enumerate(exercise.targets):
            text = texts[target.file] if target.file in texts else self._read_source(target)
            try:
                rows = source.locate(text, target.function)
            except SyntaxError:
                rows = source.guess(text, target.function)
            if rows is None:
                raise SchoolError(
                    f"{target.file} has no {target.function} any more: put the function in "
                    f"{self.kept(exercise, 'reference', number)} back in its place yourself")
            self._keep_yours(exercise, number, source.block_at(text, rows))
            texts[target.file] = source.replace_block(text, rows, self.reference(target))
        for target in exercise.targets:
            try:
                source.parse_file(texts[target.file], target.file)
            except SchoolError as error:
                raise SchoolError(f"{error} (not in {target.function}: mend this line "
                                  "first)") from None
        for file, text in texts.items():
            write(self.root / file, text)
        for number in range(len(exercise.targets)):            # number 0 first: no longer started
            self.kept(exercise, "reference", number).unlink(missing_ok=True)
        self._hint(exercise).unlink(missing_ok=True)
        return self.kept(exercise, "yours")

    def passed(self, exercise: Exercise) -> str | None:
        """The learner's function that passed; None if none did, or if the tests have changed.

        The digest binds the record to the function and to its tests.  So an empty file, a copied
        reference or an edited function does not count.  `check` without a name tests all again.
        """
        block, digest = self._record(exercise)
        return block if digest == self._digest(exercise, block) else None

    def note_passed(self, exercise: Exercise, block: str, passed: bool) -> None:
        """Record that `block` passes; or that it no longer does."""
        digest = self._digest(exercise, block) if passed else "no longer"
        self._keep(exercise, "passed", f"# passed: {digest}\n{block}")

    def written(self, exercise: Exercise) -> str | None:
        """The learner's version: in the work tree if started, else the one that passed."""
        return self.block(exercise) if self.is_started(exercise) else self._record(exercise)[0]

    def place(self, exercise: Exercise) -> str:
        """The place of the function as file:line; the file alone if it is not valid Python."""
        try:
            return f"{exercise.file}:{self.lines(exercise)[0]}"
        except SchoolError:
            return exercise.file

    def patches(self, own: Collection[Exercise], hidden_by: Exercise | None = None
                ) -> source.Patches:
        """The learner's functions for `own`, and references for all others that are started.

        A function of `own` that is in the work tree needs no patch, and keeps its line numbers.
        The functions that `hidden_by` hides are stubs.
        """
        in_place = [exercise.targets[0] for exercise in own if self.is_started(exercise)]
        blocks: dict[Target, str] = {}
        for started in self.started():
            for target in started.targets:
                if target not in in_place:
                    self._block(target)                 # raises if the file is not Python
                    blocks[target] = self.reference(target)
        for exercise in own:
            if exercise.targets[0] not in in_place:
                blocks[exercise.targets[0]] = self.written(exercise) or ""
        if hidden_by is not None:
            blocks |= dict.fromkeys(hidden_by.hidden,
                                    source.as_block(source.hidden_body(hidden_by)))
        patches: source.Patches = {}
        for target, block in blocks.items():
            patches.setdefault(target.file, []).append((target.function, block))
        return patches

    def last_hint(self, exercise: Exercise) -> int:
        """The number of the last hint that was shown; 0 if none was, or after `restore`."""
        try:
            return int(self._hint(exercise).read_text())
        except (OSError, ValueError):
            return 0

    def note_hint(self, exercise: Exercise, number: int) -> None:
        """Record that hint `number` was shown, if the tree can be written."""
        with suppress(OSError):
            self._hint(exercise).parent.mkdir(exist_ok=True)
            write(self._hint(exercise), f"{number}\n")

    def _hint(self, exercise: Exercise) -> Path:
        return self.root / KEPT / f"{exercise.name}.hint"

    def _block(self, target: Target) -> str:
        text = self._read_source(target)
        return source.block_at(text, self._locate(target, text))

    def _record(self, exercise: Exercise) -> tuple[str | None, str]:
        """The function that passed, and the digest recorded with it."""
        path, start = self.kept(exercise, "passed"), "# passed: "
        text = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
        head, _, block = text.rstrip("\n").partition("\n")
        return (block, head.removeprefix(start)) if head.startswith(start) else (None, "")

    def _digest(self, exercise: Exercise, block: str | None) -> str:
        """SHA-256 of the exercise's name, tests, test files and `block`."""
        files = sorted({test.split("::")[0] for test in exercise.tests})
        parts = [exercise.name, *exercise.tests, block or "",
                 *(read(self.root / file) for file in files)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _keep_yours(self, exercise: Exercise, number: int, block: str) -> None:
        """Keep the learner's version, unless an interrupted `restore` has kept it already."""
        restored = block == self.reference(exercise.targets[number])
        if number and source.hidden_body(exercise) in block \
                or restored and self.kept(exercise, "yours", number).exists():
            return
        self._keep(exercise, "yours", block, number)

    def _keep(self, exercise: Exercise, what: str, block: str, number: int = 0) -> None:
        path = self.kept(exercise, what, number)
        path.parent.mkdir(exist_ok=True)
        write(path, block + "\n")

    def _read_source(self, target: Target) -> str:
        try:
            return read(self.root / target.file)
        except FileNotFoundError:
            raise SchoolError(f"{target.file} is gone; git checkout brings it back") from None
        except UnicodeDecodeError as error:
            raise SchoolError(f"{target.file} is not UTF-8 ({error}): save it as UTF-8") from None

    def _locate(self, target: Target, text: str) -> source.Rows:
        source.parse_file(text, target.file)
        rows = source.locate(text, target.function)
        if rows is None:
            raise SchoolError(f"{target.file} has no function {target.function} whose body "
                              "begins on its own line; was it renamed? (git diff shows)")
        return rows


def read(path: Path) -> str:
    """The text of a file, with its line ends unchanged."""
    return path.read_bytes().decode("utf-8")


def write(path: Path, text: str) -> None:
    """Replace a file atomically, keeping its permissions."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(text.encode("utf-8"))
        if path.exists():
            shutil.copymode(path, draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
