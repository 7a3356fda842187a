"""Formulas use the letters of docs/pages/notation.md, each for one quantity."""

import re

import pytest

from tests.repository.test_layering import ROOT

FORMER = {      # what stood for it before, and what to write
    r"(?<!α )(?<!1 )/ ?[βγ](?![₁₂])": "β and γ are seconds per byte: multiply by them",
    r"β \(?(bandwidth|is bandwidth)": "β is seconds per byte, bandwidth 1 / β",
    r"b ?[·×]? ?s ?[·×]? ?h\b(?! ?=)": "b sequences of t tokens of width d: b·t·d",
    r"\das/h|\ba heads\b(?! and t ranks)": "h heads of t tokens, width d: 5 h t / d",
    r"\d ?kΨ|\bk microbatches": "m microbatches",
    r"Ψ ?/ ?N\b|Ψ \(N": "p ranks",
    r"√n segments|s snapshots": "√L segments, c snapshots",
    r"\(b, t, v\)|= vocabulary, v": "V is the vocabulary, v virtual stages",
}
FILES = [file for folder, pattern in (("minipar", "**/*.py"), ("lessons", "*.py"),
                                      ("docs/pages", "*.md"), (".", "README.md"))
         for file in (ROOT / folder).glob(pattern) if file.name != "notation.md"]


@pytest.mark.parametrize("letters", FORMER)
def test_a_letter_has_one_meaning(letters):
    found = [f"{file.relative_to(ROOT)}: {match[0]!r}: {FORMER[letters]}" for file in FILES
             for match in re.finditer(letters, file.read_text(encoding="utf-8"))]
    assert not found


def test_the_table_names_every_letter_once():
    text = (ROOT / "docs/pages/notation.md").read_text(encoding="utf-8")
    letters = [letter.strip() for row in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
               for letter in row.split(",") if letter.strip() not in ("letter", "---")]
    assert len(letters) == len(set(letters)) > 25
