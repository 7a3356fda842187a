"""Every page that says how many lessons there are, or which are missing, is up to date."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUMBERS = sorted(int(path.name[:2]) for path in (ROOT / "lessons").glob("[0-9][0-9]_*.py"))
MISSING = sorted({*range(NUMBERS[-1])} - {*NUMBERS})
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md",
         *sorted((ROOT / "docs" / "pages").rglob("*.md"))]
COUNTED = re.compile(r"\b(\d+) lessons\b")


def text_of(page: Path) -> str:
    """The page in one line."""
    return " ".join(page.read_text("utf-8").split())


def spans(numbers: list[int]) -> str:
    """The numbers in words, "00 to 26 and 30"; two neighbours are "27 and 28"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    words = [f"{span[0]:02} to {span[-1]:02}" if len(span) > 2 else
             " and ".join(f"{number:02}" for number in span) for span in found]
    return joined(words, "and")


def joined(words: list[str], last: str) -> str:
    """The words as a list, "27, 28 or 29", with the word `last` before the last."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


@pytest.mark.parametrize("numbers, expected", [
    ([0, 1, 2, 3], "00 to 03"), ([0, 1, 2, 4], "00 to 02 and 04"), ([7, 8], "07 and 08"),
    ([0, 1, 2, 5, 7, 8, 9], "00 to 02, 05 and 07 to 09")])
def test_spans_in_words(numbers, expected):
    assert spans(numbers) == expected


def test_a_page_that_counts_the_lessons_counts_all():
    pages = {page: COUNTED.findall(text_of(page)) for page in PAGES}
    wrong = {str(page.relative_to(ROOT)): counts for page, counts in pages.items()
             if {*map(int, counts)} - {len(NUMBERS)}}
    assert not wrong, f"write {len(NUMBERS)} lessons in {', '.join(wrong)}"
    assert pages[ROOT / "README.md"], f"README.md says nowhere: {len(NUMBERS)} lessons"


def test_the_readme_says_which_lessons_are_here():
    text, assignments = text_of(ROOT / "README.md"), len(
        [*(ROOT / "minipar" / "school" / "course" / "assignments").glob("*/tasks.toml")])
    for here in (f"{len(NUMBERS)} lessons are here, {spans(NUMBERS)}"
                 + (f"; {spans(MISSING)}, on" if MISSING else "."),
                 f"| {len(NUMBERS)} lessons, {assignments} assignments |"):
        assert here in text, f"README.md: write {here!r}"


def test_the_course_says_which_lessons_are_missing():
    named = re.findall(r"There is no lesson ([^:]+):", text_of(ROOT / "docs/pages/course.md"))
    expected = [joined([f"{number:02}" for number in MISSING], "or")] if MISSING else []
    assert named == expected, f"docs/pages/course.md: write 'There is no lesson {expected}:'"
