"""The spine: short enough to be read, and complete in itself."""

import io
import tokenize
from pathlib import Path

from tests.repository.test_layering import ROOT

SPINE = ROOT / "docs" / "spine.txt"
BUDGET = 3850


def files() -> list[Path]:
    """The files of the spine, in reading order."""
    lines = SPINE.read_text().splitlines()
    return [ROOT / line for line in lines if line and not line.startswith("#")]


def lines_of_code(file: Path) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    tokens = list(tokenize.generate_tokens(io.StringIO(file.read_text()).readline))
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
              tokenize.ENDMARKER}
    lines: set[int] = set()
    for before, token, after in zip([tokens[0], *tokens], tokens, [*tokens[1:], tokens[-1]]):
        alone = (before.type in layout or token is tokens[0]) and after.type == tokenize.NEWLINE
        if token.type not in layout and not (token.type == tokenize.STRING and alone):
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def test_it_fits_its_budget():
    counted = sum(map(lines_of_code, files()))
    assert f"at most {BUDGET} lines of code" in SPINE.read_text()
    assert 1000 < counted <= BUDGET


def test_lines_of_code_are_counted(tmp_path):
    file = tmp_path / "a.py"
    file.write_text('"""Doc\nstring."""\n\n# comment\nx = 1\n\n\ndef f():\n    """Doc."""\n'
                    '    return """a\nb"""\n')
    assert lines_of_code(file) == 4


def test_its_files_exist():
    spine = files()
    assert len(spine) == len(set(spine)) and all(file.exists() for file in spine)
