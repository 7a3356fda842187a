"""No file imports itself through others: not between rooms, nor inside one."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from tests.repository.test_layering import ROOT, tree_of

MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
           for path in (ROOT / "minipar").rglob("*.py")}


def when_loaded(node: ast.AST) -> Iterator[ast.ImportFrom]:
    """The imports that run when a file is loaded: not in functions, not those for types alone."""
    for child in ast.iter_child_nodes(node):
        is_for_types = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if isinstance(child, ast.ImportFrom) and child.level:
            yield child
        elif not isinstance(child, ast.FunctionDef | ast.expr) and not is_for_types:
            yield from when_loaded(child)


def imported(module: str) -> set[str]:
    """The modules of minipar that a module imports."""
    found = set()
    package = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
    for node in when_loaded(tree_of(MODULES[module])):
        base = ".".join([*package[:len(package) - node.level + 1], *filter(None, [node.module])])
        inner = {f"{base}.{alias.name}" for alias in node.names}
        found |= inner & MODULES.keys() or {base}
    return found - {module}


def test_no_module_imports_itself_through_others():
    graph = {module: imported(module) for module in MODULES}
    assert len(graph) > 300 and sum(map(len, graph.values())) > 1000
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(error.args[1][::-1])) from None
