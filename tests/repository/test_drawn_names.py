"""A name beside an arrow in the head of a file exists, if it has an underscore, as code has."""

import ast
import re

from tests.repository.test_layering import FILES, ROOT, tree_of

DRAWN = re.compile(r"▶ *([a-z]\w*_\w+)|\b([a-z]\w*_\w+) +─+▶")
FIELDS = ("name", "attr", "id", "arg")          # of definitions, attributes, values, arguments


def test_names_beside_arrows_exist():
    drawn = {(name, str(file.relative_to(ROOT))) for file in FILES
             for pair in DRAWN.findall(ast.get_docstring(tree_of(file)) or "") for name in pair
             if name}
    assert len(drawn) > 10
    unknown = {name for name, _ in drawn} - {file.stem for file in FILES}
    for node in (node for file in FILES for node in ast.walk(tree_of(file))):
        unknown.difference_update(getattr(node, field, None) for field in FIELDS)
    assert not {(name, file) for name, file in drawn if name in unknown}
