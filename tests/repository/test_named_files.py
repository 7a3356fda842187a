"""Every file that a docstring, a comment or a page names exists."""

import re
from functools import cache

import pytest

from tests.repository.test_layering import ROOT

NAMED = re.compile(r"(?<![\w./*-])(?:[\w.-]+/)*[\w-]+\.(?:py|toml|cfg|cff)\b")
NOT_OURS = {"my.py", "largest.py", "program.py", "run.toml", "mappings.py",     # of users
            "contextlib.py"}
PATTERN = re.compile(r"[A-Z]{2,}")          # such as NAME.py, for any name
NOT_SOURCE = (".git", ".venv", "site", "out", "build")
PLACES = (ROOT / "minipar", ROOT / "lessons", ROOT / "docs")
SOURCES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md",
           *sorted(path for place in PLACES for path in place.rglob("*")
                   if path.suffix in (".py", ".md", ".toml"))]


@cache
def folders() -> list:
    """All folders of the project."""
    return [ROOT, *(folder for top in ROOT.iterdir() if top.is_dir()
                    and top.name not in NOT_SOURCE
                    for folder in (top, *top.rglob("*")) if folder.is_dir())]


def exists(name: str) -> bool:
    """True if some folder has a file of this name, or at this path."""
    return any((folder / name).is_file() for folder in folders())


@pytest.mark.parametrize("word, found", [
    ("see `ddp.py`", ["ddp.py"]), ("no file.pyc", []),
    ("minipar/parallel/flats.py:", ["minipar/parallel/flats.py"])])
def test_names_are_found(word, found):
    assert NAMED.findall(word) == found


def test_every_file_that_is_named_exists():
    missing = {}
    for source in SOURCES:
        names = {*NAMED.findall(source.read_text(encoding="utf-8"))}
        gone = sorted(name for name in names - NOT_OURS
                      if not PATTERN.search(name) and not exists(name))
        if gone:
            missing[str(source.relative_to(ROOT))] = gone
    assert not missing
