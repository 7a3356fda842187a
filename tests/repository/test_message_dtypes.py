"""Every array of integers that is sent names its dtype: the default has 64 bits on some machines
and 32 on others (WebAssembly, 32-bit ARM), and ranks may be of either kind.

Reads the source: an array made without a dtype, or by a function that returns indices, must not
come into the arguments of a send or collective, neither directly, nor by a name of the same
function, nor by a function of the same file.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [file for file in sorted([*(ROOT / "minipar").rglob("*.py"), *ROOT.glob("lessons/*.py")])
         if "comm" in file.read_text()]

SENDS = {"send", "isend", "sendrecv", "broadcast", "scatter", "gather", "reduce", "all_gather",
         "all_reduce", "all_to_all", "reduce_scatter", "scan", "exscan", "gather_array",
         "start_work"}
DTYPE_AT = {"array": 1, "asarray": 1, "full": 2, "arange": 3, "zeros": 1, "empty": 1, "ones": 1,
            "cumsum": 2}        # which positional argument is the dtype
MAY_BE_FLOAT = {"zeros", "empty", "ones"}       # without a dtype: float64 everywhere
OF_INDICES = {"bincount", "argsort", "flatnonzero", "nonzero", "searchsorted", "argmax", "argmin",
              "digitize", "count_nonzero", "lexsort", "argpartition", "indices"}
PLATFORM = {"int", "intp", "int_", "uint", "uintp"}     # dtypes whose size the machine decides


def name_of(node: ast.expr) -> str:
    return getattr(node, "id", getattr(node, "attr", ""))


def is_float(node: ast.AST) -> bool:
    """A number, or a call of `float`, that makes what it is part of float64 on any machine."""
    return isinstance(node, ast.Constant) and isinstance(node.value, float) or (
        isinstance(node, ast.Call) and name_of(node.func) == "float")


class Reader:
    """The arrays of one function that are integers of a size that is not named."""

    def __init__(self, function: ast.AST):
        self.names: set[str] = set()
        while True:
            found = {target.id for node in ast.walk(function) if isinstance(node, ast.Assign)
                     for target, value in self.pairs(node) if isinstance(target, ast.Name)
                     and self.is_unnamed(value)}
            if found <= self.names:
                break
            self.names |= found

    @staticmethod
    def pairs(node: ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts)
            else:
                yield target, node.value

    def is_unnamed(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self.names
        if any(is_float(part) for part in ast.walk(node)):
            return False
        if isinstance(node, ast.Subscript | ast.Starred | ast.Attribute):
            return self.is_unnamed(node.value)
        if isinstance(node, ast.Call):
            return self.call_is_unnamed(node)
        return isinstance(node, ast.BinOp | ast.IfExp | ast.UnaryOp) and any(
            self.is_unnamed(child) for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr))

    def call_is_unnamed(self, call: ast.Call) -> bool:
        name = name_of(call.func)
        on_numpy = isinstance(call.func, ast.Attribute) and name_of(call.func.value) == "np"
        if name == "astype" or name == "view":
            return any(name_of(arg) in PLATFORM for arg in call.args)
        if not on_numpy:        # a method of an array, or a function that we do not know
            return isinstance(call.func, ast.Attribute) and self.is_unnamed(call.func.value)
        dtypes = [word.value for word in call.keywords if word.arg == "dtype"]
        dtypes += call.args[DTYPE_AT[name]:][:1] if name in DTYPE_AT else []
        if dtypes:
            return name_of(dtypes[0]) in PLATFORM
        if name in ("array", "asarray") and call.args and not isinstance(
                call.args[0], ast.List | ast.Tuple | ast.ListComp):
            return self.is_unnamed(call.args[0])        # of another array
        return name in OF_INDICES or name in DTYPE_AT and name not in MAY_BE_FLOAT


def functions(tree: ast.AST) -> list:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]


def sends_of(tree: ast.AST) -> set[str]:
    """SENDS, and the functions of this file that hand one of their arguments on to one."""
    sends, named = set(SENDS), [f for f in functions(tree) if isinstance(f, ast.FunctionDef)]
    while True:
        more = {function.name for function in named for call in calls_of(function, sends)
                for arg in call.args[1:] if isinstance(arg, ast.Name)
                and arg.id in {a.arg for a in function.args.args}}
        if more <= sends:
            return sends
        sends |= more


def calls_of(function: ast.AST, sends: set[str]) -> list[ast.Call]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Call)
            and name_of(node.func) in sends and not ast.unparse(node.func).startswith("np.")]


def faults(source: str) -> list[int]:
    """The lines where integers without a named size are sent."""
    tree = ast.parse(source)
    sends = sends_of(tree)
    found = set()
    for function in functions(tree):
        calls = calls_of(function, sends)
        reader = Reader(function) if calls else None
        found |= {call.lineno for call in calls
                  for arg in [*call.args, *[word.value for word in call.keywords]]
                  if reader.is_unnamed(arg)}
    return sorted(found)


def test_integers_that_are_sent_have_a_named_dtype():
    found = {str(file.relative_to(ROOT)): faults(file.read_text()) for file in FILES}
    wrong = {file: lines for file, lines in found.items() if lines}
    assert not wrong, f"name the dtype of the arrays that are sent in these lines: {wrong}"


@pytest.mark.parametrize("code", [
    "comm.send(np.array([text.size]), root)",
    "comm.isend(np.arange(3), 1)",
    "n = np.array([len(x)]); broadcast(comm, n)",
    "a, b = np.full(3, n), 1; c = a[1:] if b else a; all_reduce(comm, c.reshape(2) * 2, out=c)",
    "comm.sendrecv(mine, 1, np.zeros(2, int), 0)",
    "all_gather(comm, np.argsort(x))",
    "start_work(all_reduce, comm, x.astype(int))",
    "total(comm, np.bincount(x))"])
def test_it_finds_them(code):
    source = (f"def total(comm, x):\n    return all_reduce(comm, x)\n"
              f"def f(comm, x):\n    {code}\n")
    assert faults(source) == [4]


@pytest.mark.parametrize("code", [
    "comm.send(np.array([text.size], np.int64), root)",
    "n = np.array([len(x)], dtype='i8'); broadcast(comm, n)",
    "all_reduce(comm, np.full(3, float(n))); all_reduce(comm, np.arange(3) * 0.5)",
    "all_gather(comm, np.argsort(x).astype(np.int32)); gather(comm, np.zeros(3))",
    "comm.send(x[np.arange(3)], comm.size)",
    "np.add.reduce(np.arange(3))"])
def test_what_is_named_passes(code):
    assert faults(f"def f(comm, x):\n    {code}\n") == []
