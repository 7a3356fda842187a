"""The workbench: functions cut out of the work tree, and what is kept so that nothing gets lost.

    .exercises/NAME.reference.py    the function as it was; while it is here, NAME is started
               NAME.yours.py        what you had written when the reference came back
               NAME.passed.py       what you had written when it last passed, below a digest
               NAME.hidden1.….py    the first two for a function that NAME hides

A file is written beside its place and then moved there: whoever reads sees the old or the new one.
"""

import hashlib
import os
import shutil
from pathlib import Path

from . import manifest, surgery
from .manifest import Cut, Exercise, Refusal

KEPT = ".exercises"


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

    def kept(self, exercise: Exercise, what: str, number: int = 0) -> Path:
        """Where the reference, yours or passed version of an exercise's function is kept.

        `number` counts its cuts: 0 is the function to write, the others are hidden.
        """
        hidden = f".hidden{number}" if number else ""
        return self.root / KEPT / f"{exercise.name}{hidden}.{what}.py"

    def is_started(self, exercise: Exercise) -> bool:
        """Whether the function in the work tree is the learner's."""
        return self.kept(exercise, "reference").exists()

    def started(self) -> list[Exercise]:
        """The exercises that are started."""
        return [exercise for exercise in self.exercises.values() if self.is_started(exercise)]

    def state(self, exercise: Exercise) -> str:
        """reference, started or passed."""
        passed = self.passed(exercise)
        if not self.is_started(exercise):
            return "reference" if passed is None else "passed"
        try:
            return "passed" if passed == self.block(exercise) else "started"
        except Refusal:
            return "started"

    def block(self, exercise: Exercise) -> str:
        """The function as it stands in the work tree.

        Raises Refusal if it is not there, or if its file is not Python (with the line).
        """
        return self._block(exercise.cuts[0])

    def lines(self, exercise: Exercise) -> tuple[int, int]:
        """The first and the last line of the function, counted from 1."""
        cut = exercise.cuts[0]
        rows = self._locate(cut, self._read_source(cut))
        return rows.first + 1, rows.end

    def reference(self, cut: Cut) -> str:
        """A function as it was before an exercise cut it."""
        for exercise in self.started():
            for number, other in enumerate(exercise.cuts):
                kept = self.kept(exercise, "reference", number)
                if other == cut and kept.exists():
                    return read(kept).rstrip("\n")
        return self._block(cut)

    def start(self, exercise: Exercise) -> None:
        """Put stubs in the places of the function and of those that it hides."""
        if self.is_started(exercise):
            raise Refusal(f"{exercise.name} is started already: write it in "
                          f"{self.place(exercise)}; to begin again, restore {exercise.name} first")
        for other in self.started():
            for cut in set(exercise.cuts).intersection(other.cuts):
                raise Refusal(f"{other.name} is started and cuts {cut.function} of {cut.file}, too:"
                              f" restore {other.name} first (what you wrote is kept)")
        texts: dict[str, str] = {}
        blocks = []
        for number, cut in enumerate(exercise.cuts):
            text = texts[cut.file] if cut.file in texts else self._read_source(cut)
            rows = self._locate(cut, text)
            blocks.append(surgery.cut(text, rows))
            texts[cut.file] = surgery.replace_block(
                text, rows, surgery.hidden_stub(text, rows, exercise) if number
                else surgery.stub(text, rows, exercise))
        for number in reversed(range(len(blocks))):         # number 0 comes last: it says "started"
            self._keep(exercise, "reference", blocks[number], number)
        for file, text in texts.items():
            write(self.root / file, text)

    def restore(self, exercise: Exercise) -> Path:
        """Bring what was cut back; return where the learner's version is kept."""
        if not self.is_started(exercise):
            raise Refusal(f"{exercise.name} is not started: there is nothing to restore")
        texts: dict[str, str] = {}
        for number, cut in enumerate(exercise.cuts):
            text = texts[cut.file] if cut.file in texts else self._read_source(cut)
            try:
                rows = surgery.locate(text, cut.function)
            except SyntaxError:
                rows = surgery.guess(text, cut.function)
            if rows is None:
                raise Refusal(f"{cut.file} has no {cut.function} any more: put the function in "
                              f"{self.kept(exercise, 'reference', number)} back in its place "
                              "yourself")
            self._keep_yours(exercise, number, surgery.cut(text, rows))
            texts[cut.file] = surgery.replace_block(text, rows, self.reference(cut))
        for cut in exercise.cuts:
            try:
                surgery.parse_file(texts[cut.file], cut.file)
            except Refusal as refusal:
                raise Refusal(f"{refusal} (not in {cut.function}: mend this line first)") from None
        for file, text in texts.items():
            write(self.root / file, text)
        for number in range(len(exercise.cuts)):            # number 0 first: no longer started
            self.kept(exercise, "reference", number).unlink(missing_ok=True)
        return self.kept(exercise, "yours")

    def passed(self, exercise: Exercise) -> str | None:
        """The function that passed; None if none did, or if its tests are others by now.

        The digest binds the record to what passed and to the tests: an empty file, a reference
        that was copied there, an edited function are no record.  `check` without a name runs all
        of them again.
        """
        block, digest = self._record(exercise)
        return block if digest == self._digest(exercise, block) else None

    def note_passed(self, exercise: Exercise, block: str, passed: bool) -> None:
        """Remember that `block` has passed; or, if it once had, that it does so no longer."""
        digest = self._digest(exercise, block) if passed else "no longer"
        self._keep(exercise, "passed", f"# passed: {digest}\n{block}")

    def written(self, exercise: Exercise) -> str | None:
        """What the learner has written: what stands in the file, or what has passed before."""
        return self.block(exercise) if self.is_started(exercise) else self._record(exercise)[0]

    def place(self, exercise: Exercise) -> str:
        """Where the function begins, as file:line, or the file alone while it is not Python."""
        try:
            return f"{exercise.file}:{self.lines(exercise)[0]}"
        except Refusal:
            return exercise.file

    def grafts(self, but: Exercise, hide: bool = True) -> dict[str, list[tuple[str, str]]]:
        """By file, the references of all started exercises except one: it is judged alone.

        What that one hides is hidden; or, with hide=False, all of it is there.  Its file is in any
        case.
        """
        grafts: dict[str, list[tuple[str, str]]] = {but.file: []}
        others = [cut for exercise in self.started() if exercise is not but
                  for cut in exercise.cuts if cut not in but.cuts]
        for cut in others:
            self._block(cut)                            # refuses a file that is not Python
        for cut in (*others, *but.hidden):
            hidden = hide and cut in but.hidden
            block = surgery.as_block(surgery.hidden_body(but)) if hidden else self.reference(cut)
            grafts.setdefault(cut.file, []).append((cut.function, block))
        return grafts

    def _block(self, cut: Cut) -> str:
        text = self._read_source(cut)
        return surgery.cut(text, self._locate(cut, text))

    def _record(self, exercise: Exercise) -> tuple[str | None, str]:
        """What has passed, and the digest that is kept with it."""
        path, start = self.kept(exercise, "passed"), "# passed: "
        text = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
        head, _, block = text.rstrip("\n").partition("\n")
        return (block, head.removeprefix(start)) if head.startswith(start) else (None, "")

    def _digest(self, exercise: Exercise, block: str | None) -> str:
        """SHA-256 of what an exercise's result depends on, but for the library around it."""
        files = sorted({test.split("::")[0] for test in exercise.tests})
        parts = [exercise.name, *exercise.tests, block or "",
                 *(read(self.root / file) for file in files)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def _keep_yours(self, exercise: Exercise, number: int, block: str) -> None:
        """Keep what the learner has written, unless a `restore` that was interrupted has."""
        restored = block == self.reference(exercise.cuts[number])
        if number and surgery.hidden_body(exercise) in block \
                or restored and self.kept(exercise, "yours", number).exists():
            return
        self._keep(exercise, "yours", block, number)

    def _keep(self, exercise: Exercise, what: str, block: str, number: int = 0) -> None:
        path = self.kept(exercise, what, number)
        path.parent.mkdir(exist_ok=True)
        write(path, block + "\n")

    def _read_source(self, cut: Cut) -> str:
        try:
            return read(self.root / cut.file)
        except FileNotFoundError:
            raise Refusal(f"{cut.file} is gone; git checkout brings it back") from None
        except UnicodeDecodeError as error:
            raise Refusal(f"{cut.file} is not UTF-8 ({error}): save it as UTF-8") from None

    def _locate(self, cut: Cut, text: str) -> surgery.Rows:
        surgery.parse_file(text, cut.file)
        rows = surgery.locate(text, cut.function)
        if rows is None:
            raise Refusal(f"{cut.file} has no function {cut.function} with a body of its own "
                          "lines; was it renamed? (git diff tells)")
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
