"""The head of every package names each file and folder of it, and none that is not there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC = ROOT / "minipar"           # its head is for users; the design page lists its rooms
SHARED = (ROOT / "lessons" / "support", ROOT / "tests" / "support")
HEADS = [*sorted((ROOT / "minipar").rglob("__init__.py")),
         *(folder / "__init__.py" for folder in SHARED),
         ROOT / "docs" / "builder" / "build.py"]            # a folder of programs, no package
HEADS.remove(PUBLIC / "__init__.py")
IN_DRAWINGS = {"left", "right", "grids"}        # words where the names of files stand elsewhere


def contents(package: Path) -> set[str]:
    """The names of a package's files and folders; NN for the number of a lesson."""
    files = {re.sub(r"(?<=^lesson_)\d\d$", "NN", path.stem) for path in package.glob("*.py")}
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    return files - {"__init__", "__main__"} | folders


@cache
def all_files() -> set[str]:
    """The names of all files of the repository."""
    folders = ("minipar", "lessons", "tests", "docs")
    return {path.stem for folder in folders for path in (ROOT / folder).rglob("*.py")}


@pytest.mark.parametrize("file", HEADS, ids=lambda file: file.parent.relative_to(ROOT).as_posix())
def test_a_head_names_what_is_there(file):
    head, here = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "", contents(file.parent)
    ending = "" if PUBLIC in file.parents else r"\.py"      # else `page` is found in any sentence
    missing = {name for name in here - {file.stem} if not re.search(rf"\b{name}{ending}\b", head)}
    assert not missing, f"add a line for each to the head of {file.relative_to(ROOT)}"
    named = set(re.findall(r"\b(\w+)\.py\b", head)) - {"__main__"}
    assert named <= here | all_files()
    rows = re.findall(r"^    ([a-z_]\w*(?:, [a-z_]\w*)*) {2,}\S", head, re.MULTILINE)
    listed = {name for row in rows for name in row.split(", ")}
    assert listed - IN_DRAWINGS <= here | all_files(), "these are not there"


def test_the_readme_has_a_row_for_every_room():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split("| folder | what it is for |")[1].split("\n\n")[0]
    missing = {name for name in contents(PUBLIC)
               if not re.search(rf"`(minipar/)?{name}\b", table)}
    assert not missing, "README.md: a row for each package and file of minipar/"
    assert len(text.splitlines()) < 150


def test_the_design_page_has_a_row_for_every_room():
    text = (ROOT / "docs" / "pages" / "design.md").read_text(encoding="utf-8")
    rows = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    missing = {name for name in contents(PUBLIC) if not re.search(rf"\b{name}\b", rows)}
    assert not missing
