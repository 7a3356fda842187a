"""The head of every package names each file and folder of it, and none that is not there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in (ROOT / "minipar").rglob("__init__.py"))
PUBLIC = ROOT / "minipar"           # its head is for users; the design page lists its rooms


def contents(package: Path) -> set[str]:
    """The names of a package's files and folders."""
    files = {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}
    return files | {path.parent.name for path in package.glob("*/__init__.py")}


@pytest.mark.parametrize("package", [package for package in PACKAGES if package != PUBLIC],
                         ids=lambda package: package.relative_to(ROOT).as_posix())
def test_a_head_names_what_is_there(package):
    head = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
    missing = {name for name in contents(package) if not re.search(rf"\b{name}\b", head)}
    assert not missing
    named = set(re.findall(r"\b(\w+)\.py\b", head)) - {"__main__"}
    elsewhere = {path.stem for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    assert named <= contents(package) | elsewhere


def test_the_design_page_has_a_row_for_every_room():
    text = (ROOT / "docs" / "pages" / "design.md").read_text(encoding="utf-8")
    rows = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    missing = {name for name in contents(PUBLIC) if not re.search(rf"\b{name}\b", rows)}
    assert not missing
