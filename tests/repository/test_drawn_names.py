"""A name beside an arrow in the head of a file exists, if it has an underscore, as code has."""

import ast
import re

from tests.repository.test_layering import ROOT

DRAWN = re.compile(r"▶ *([a-z]\w*_\w+)|\b([a-z]\w*_\w+) +─+▶")
FIELDS = ("name", "attr", "id", "arg")          # of definitions, attributes, values, arguments


def test_names_beside_arrows_exist():
    trees = {file: ast.parse(file.read_text("utf-8")) for file in (ROOT / "minipar").rglob("*.py")}
    known = {getattr(node, field, None) for tree in trees.values() for node in ast.walk(tree)
             for field in FIELDS} | {file.stem for file in trees}
    drawn = {(name, str(file.relative_to(ROOT))) for file, tree in trees.items()
             for pair in DRAWN.findall(ast.get_docstring(tree) or "") for name in pair if name}
    assert len(drawn) > 10
    assert not {(name, file) for name, file in drawn if name not in known}
