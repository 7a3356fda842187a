"""A model is altered by two doors, `parameter.on_use` and `module.around`, and layers are replaced.

There is no third one: no class of an object, and no method of an instance, is assigned.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.repository.test_layering import FILES, ROOT, tree_of

# of modules and parameters
METHODS = {method.name for file in FILES if file.parent.name in ("nn", "moe")
           for node in ast.walk(tree_of(file)) if isinstance(node, ast.ClassDef)
           for method in node.body
           if isinstance(method, ast.FunctionDef) and not method.decorator_list}
# plain data set by name, on objects that are no modules: lines by file
BY_NAME = {"minipar/comm/simulated/progress.py": 2, "minipar/parallel/zero/zero3_by_autograd.py": 1,
           "minipar/comm/communicator.py": 1}       # mpi4py's names, each a refusal


ASSIGNING = ast.Assign, ast.AnnAssign, ast.AugAssign


def assigned(node: ast.AST) -> Iterator[tuple[ast.Attribute, ast.expr | None]]:
    """The attributes that a statement assigns, each with its value, if it has one of its own."""
    found = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in found:
        for part in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(part, ast.Attribute):
                yield part, None if part is not target else node.value


def is_function(value: ast.expr | None, functions: set[str]) -> bool:
    """True for a lambda, a partial, one of the `functions`, and a method of another object."""
    return isinstance(value, ast.Lambda) \
        or isinstance(value, ast.Name) and value.id in functions \
        or isinstance(value, ast.Attribute) and value.attr in METHODS \
        or isinstance(value, ast.Call) and ast.unparse(value.func).endswith("partial")


def third_doors(tree: ast.Module) -> list[str]:
    """What assigns a class, or a method of an instance, or sets an attribute by its name."""
    nodes = [*ast.walk(tree)]
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    calls = [node for node in nodes if isinstance(node, ast.Call)
             and getattr(node.func, "id", "") == "setattr"]
    return [ast.unparse(node) for node in nodes if isinstance(node, ASSIGNING) and any(
        target.attr == "__class__" or target.attr in METHODS
        and ast.unparse(target.value) != "self" and is_function(value, functions)
        for target, value in assigned(node))] + [ast.unparse(node) for node in calls]


def test_there_is_no_third_door():
    found = {str(file.relative_to(ROOT)): third_doors(tree_of(file)) for file in FILES}
    assert not {file: lines for file, lines in found.items() if len(lines) > BY_NAME.get(file, 0)}


@pytest.mark.parametrize("text", [
    "layer.__class__ = Row", "slab.__class__, slab.comm = Row, 1", "setattr(layer, 'forward', f)",
    "model.loss = lambda x: x", "def f(x): return x\nlayer.forward = f",
    "layer.forward = partial(run, layer)", "layer.forward = other.forward"])
def test_the_check_finds_one(text):
    assert third_doors(ast.parse(text))


@pytest.mark.parametrize("text", ["model.head = Head(model)", "layer.rate = 0.1",
                                  "layer.around(lambda forward, x: forward(x))"])
def test_the_check_lets_pass(text):
    assert not third_doors(ast.parse(text))
