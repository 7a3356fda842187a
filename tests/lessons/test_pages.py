"""Every lesson's page: what to guess, the algorithm that runs, a derivation in steps."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "lessons")
    from support import page
    return page


def test_a_row_keeps_its_indentation_in_markdown(page):
    from support.rows import as_markdown
    assert as_markdown(["what", "n"], [["rounds", 3], ["    bytes", 8], ["a|b", ""]]).split(
        "\n")[2:] == ["| rounds | 3 |", "| &emsp;&emsp;bytes | 8 |", "| a\\|b |   |"]


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_a_page_is_whole(page, lesson):
    found = page.sections(lesson.stem)
    assert list(found) == [page.GUESS, page.DERIVATION, page.QUESTIONS]
    assert 15 <= len(found[page.GUESS].split()) <= 110 and "?" in found[page.GUESS] + "?"
    steps = re.findall(r"^(\d)\. ", found[page.DERIVATION], re.MULTILINE)
    assert steps == [str(i + 1) for i in range(len(steps))] and 3 <= len(steps) <= 8
    accidents = re.findall(r"\S\n(?:\s*1\)|\s*[-+*]| +\d+\.)\s.*", "\n".join(found.values()))
    assert not accidents, "a formula is wrapped so that Markdown begins a list"
    assert "`" in found[page.DERIVATION], "a derivation has formulas"
    assert re.search(r"\b(19|20)\d\d\b", found[page.DERIVATION]), "and a source"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_the_algorithm_of_a_lesson_is_there(page, lesson):
    found = page.shown(lesson.stem)
    lines = found.text.splitlines()
    assert 3 <= len(lines) <= 90
    source = (ROOT / found.file).read_text(encoding="utf-8").splitlines()
    assert source[found.line - 1].strip() == lines[0].strip()
