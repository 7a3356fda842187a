"""Every import names a module, and names in it, that exist: also one within a function or a string.

An import within a function fails only when it runs, perhaps only where PyTorch is installed.  So
the project's own modules are read here, not imported; nothing of others need be installed.
"""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import minipar
from tests.repository.test_layering import ROOT, tree_of

PLACES = ("minipar", "lessons", "docs")             # tests are run: a wrong import fails
FILES = sorted(file for place in PLACES for file in (ROOT / place).rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/pages").rglob("*.md"))]
ROOTS = (ROOT, ROOT / "lessons", ROOT / "docs/builder")         # of absolute imports
IN_TEXT = re.compile(r"(?:^|[\n;`])[ \t>]*(?:from[ ]+((?:minipar|support)[\w.]*)[ ]+import[ ]+"
                     r"(?:\(([^)]*)\)|([^\n;#`()]*))|import[ ]+((?:minipar|support)[\w.]*))")

Import = tuple[str, list[str]]          # a module, and the names imported from it


def imports_of(tree: ast.AST, package: str = "") -> Iterator[Import]:
    """All imports of a file in `package`, those in its strings as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, []
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[:len(package.split(".")) + 1 - node.level]
            name = ".".join([*base] * bool(node.level) + [node.module] * bool(node.module))
            yield name, [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) \
                and "import " in node.value:
            yield from imports_in_text(node.value)


def imports_in_text(text: str) -> Iterator[Import]:
    """The imports of minipar that a program within a text or a page has."""
    for match in IN_TEXT.finditer(text):
        module, in_parentheses, on_line, alone = match.groups()
        names = [each.split()[0] for each in (in_parentheses or on_line or "").split(",")
                 if each.strip()]
        yield module or alone, [name for name in names if name.isidentifier()]


@cache
def file_of(module: str) -> Path | None:
    """The file of one of the project's modules; a folder if it has no __init__.py."""
    for root in ROOTS:
        place = root.joinpath(*module.split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py", place):
            if path.exists():
                return path
    return None


@cache
def names_in(file: Path) -> frozenset[str]:
    """The names that a file binds outside its functions and classes."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            return
        if isinstance(node, ast.alias):
            found.add(node.asname or node.name.split(".")[0])
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        for child in ast.iter_child_nodes(node):
            visit(child)
    visit(tree_of(file))
    return frozenset(found)


def fault(module: str, names: list[str]) -> str:
    """What is wrong with an import, or ""."""
    file = file_of(module)
    if file is None:
        return "" if exists_elsewhere(module) else f"there is no module {module}"
    for name in names:
        if file_of(f"{module}.{name}") or name == "*":
            continue
        bound = names_in(file) if file.is_file() else frozenset()
        if name not in bound and not ("__getattr__" in bound
                                      and hasattr(importlib.import_module(module), name)):
            return f"{module} has no {name}"
    return ""


@cache
def exists_elsewhere(module: str) -> bool:
    """True for a module of Python's library, and for all of third parties."""
    top = module.split(".")[0]
    if top not in sys.stdlib_module_names:
        return top not in ("minipar", "support", "tests")
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:         # what is before its last dot has no modules
        return False


@pytest.mark.parametrize("program, wrong", [
    ("def f():\n    from minipar.nowhere import x", "there is no module minipar.nowhere"),
    ("def f():\n    from .torch_models import TorchGPT", "no module tests.bench.torch_models"),
    ("from .baselines.torch_models import TorchGPT, copy_state", ""),
    ("from .baselines.torch_models import TorchGPT2", "torch_models has no TorchGPT2"),
    ("from ..support import matrix", ""),
    ("from .. import support, nowhere", "tests has no nowhere"),
    ("from minipar import GPT", ""), ("from minipar import GPTs", "minipar has no GPTs"),
    ("import minipar.nowhere", "no module minipar.nowhere"),
    ("import os.pathology", "no module os.pathology"), ("import torch.nowhere", ""),
    ("code = 'import sys; from minipar.comm import Clusters'", "minipar.comm has no Clusters"),
    ("code = '''\nfrom minipar.comm import (\n    Cluster,\n    Nowhere)\n'''", "has no Nowhere"),
    ("code = 'x = 1\\nimport minipar.nowhere as n'", "no module minipar.nowhere")])
def test_a_wrong_import_is_found(program, wrong):
    found = [fault(*each) for each in imports_of(ast.parse(program), "tests.bench")]
    assert wrong in "".join(found) and bool(wrong) == any(found)


@pytest.mark.parametrize("place", PLACES)
def test_every_import_of_the_source_exists(place):
    wrong, count = {}, 0
    for file in FILES:
        parts = file.relative_to(ROOT).parts
        if parts[0] != place:
            continue
        for each in imports_of(tree_of(file), ".".join(parts[:-1])):
            count += 1
            if found := fault(*each):
                wrong.setdefault(str(file.relative_to(ROOT)), []).append(found)
    assert count > 20 and not wrong


def test_every_import_of_a_page_exists():
    found = [(page.name, *each) for page in PAGES
             for each in imports_in_text(page.read_text(encoding="utf-8"))]
    assert len(found) > 5
    assert [(page, module, names) for page, module, names in found if fault(module, names)] == []


def test_no_room_takes_the_place_of_a_function():
    """`import minipar.NAME` would put the package where `mp.NAME` was."""
    rooms = {path.name for path in (ROOT / "minipar").iterdir() if path.is_dir()}
    assert not {name for name in rooms & {*minipar.__all__}
                if not isinstance(getattr(minipar, name), ModuleType)}
