"""The lessons: their scripts, their questions, and which of them the learner has run.

    source tree     lessons/NN_title.py, docs/pages/lessons/NN.md
    pip install     the same below share/minipar
    out/NN/         lesson.json is written when a lesson has run to its end

A lesson is found by its number or by a word of its title.
"""

import ast
import difflib
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from ..toml_files import SchoolError

SOURCE_TREE = Path(__file__).parents[3]
SCRIPT = re.compile(r"(\d\d)_\w+\.py")


class Lesson(NamedTuple):
    """A lesson: its number, the question that it asks, and its script."""

    number: int
    question: str
    script: Path

    @property
    def title(self) -> str:
        """The title, as its file name has it."""
        return self.script.stem.partition("_")[2].replace("_", " ")


def lessons_folder() -> Path:
    """The folder of the scripts.  Raises SchoolError if there is none."""
    if (SOURCE_TREE / "lessons" / "support").is_dir():
        return SOURCE_TREE / "lessons"
    try:
        files = metadata.files("minipar") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.parent.name == "lessons" and SCRIPT.fullmatch(file.name):
            return Path(str(file.locate())).resolve().parent
    raise SchoolError("the lessons are not installed: pip install minipar again, or git clone it")


def lessons() -> list[Lesson]:
    """All lessons, in order."""
    found = []
    for script in sorted(lessons_folder().glob("[0-9][0-9]_*.py")):
        with script.open(encoding="utf-8") as file:
            first = file.readline()
        found.append(Lesson(int(script.name[:2]), first.partition(". ")[2].strip(), script))
    return found


def find_lesson(word: str) -> Lesson:
    """A lesson by number, or by a part of its title.  Raises SchoolError, with the nearest ones."""
    known = lessons()
    if word.isdigit():
        for lesson in known:
            if lesson.number == int(word):
                return lesson
        near = sorted(known, key=lambda lesson: abs(lesson.number - int(word)))[:3]
        names = ", ".join(f"{lesson.number:02} ({lesson.title})" for lesson in sorted(near))
        raise SchoolError(f"there is no lesson {word}: the nearest are {names}")
    found = [lesson for lesson in known if word.lower() in lesson.script.stem.replace("_", " ")]
    if len(found) == 1:
        return found[0]
    close = found or [lesson for lesson in known if difflib.get_close_matches(
        word.lower(), lesson.title.split(), cutoff=0.6)]
    names = ", ".join(f"{lesson.number:02} ({lesson.title})" for lesson in close)
    raise SchoolError(f"{len(found) or 'no'} lessons have {word!r} in their title"
                   + (f": {names}" if names else ": `minipar lessons` lists them"))


def open_lesson(number: int) -> tuple[str, str]:
    """Begin a lesson's notebook; return the path and the docstring of the lesson's script.

    The lesson's helpers can be imported from now on.  docs/builder/notebooks.py makes the
    notebooks.
    """
    script = find_lesson(str(number)).script
    if str(script.parent) not in sys.path:
        sys.path.insert(0, str(script.parent))
    # the notebook shows the introduction in a cell of its own
    sys.argv = [str(script), "--no-introduction"]
    return str(script), ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""


def has_run(lesson: Lesson, out: Path) -> bool:
    """True if the lesson was run to its end, with `out` for its results."""
    return (out / f"{lesson.number:02}" / "lesson.json").exists()


def default_out() -> Path:
    """The folder into which lessons write: out/ of the source tree, or of the working directory."""
    return (SOURCE_TREE if (SOURCE_TREE / "setup.cfg").exists() else Path()) / "out"
