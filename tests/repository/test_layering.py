"""The house rules: who may import whom, where the environment is read, how long a file may be."""

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "minipar"
FILES = sorted(PACKAGE.rglob("*.py"))

LOW = {"atomic_files", "backend", "number_formats", "random"}
ALLOWED = {     # what each room may import, itself apart
    "atomic_files": set(),
    "units": set(),
    "environment": set(),
    "random": set(),
    "backend": set(),
    "number_formats": {"backend"},
    "autograd": LOW,
    "nn": {*LOW, "autograd"},
    "comm": {"atomic_files", "backend", "environment"},         # never sees a Tensor
    "data": {"random", "comm"},                     # comm: the rule by which things are cut
    "optim": {*LOW, "autograd", "nn", "comm"},      # comm: a norm of shards is a sum over ranks
    "memory": {*LOW, "autograd", "nn", "optim"},
    "parallel": {*LOW, "autograd", "nn", "optim", "comm", "memory"},
    "mixed_precision": {*LOW, "autograd", "nn", "comm"},      # comm: an overflow on any rank
    "plan": {"nn", "comm", "parallel"},
    "step_simulation": {"backend", "environment", "autograd", "nn", "optim", "comm", "memory",
                   "parallel", "plan"},         # environment: the cores that it measures
    "checkpoint_file": {*LOW, "autograd", "nn", "optim", "comm", "memory", "parallel"},
    "compress": {*LOW, "autograd", "nn", "optim", "comm", "memory", "parallel",
                 "checkpoint_file"},
    "inference": {*LOW, "autograd", "nn", "comm", "parallel", "compress"},
    "gspmd": {*LOW, "units", "autograd", "nn", "comm", "parallel"},
    "interop": {"atomic_files", "number_formats", "nn", "data"},
    "viz": {"atomic_files", "units", "number_formats", "comm", "autograd", "parallel"},
    "launcher": {"autograd", "comm", "environment", "memory"},
    "compare_runs": {*LOW, "autograd", "nn", "optim", "comm", "data", "memory", "parallel"},
    "testing": {"comm", "environment", "compare_runs"},
    "school.__init__": set(),
    "school.toml_files": set(),
    "school.exercises": {"environment", "school.toml_files"},   # works while the rest is broken
    "school.course": {"atomic_files", "school.exercises", "school.toml_files", "train"},
    "school.notebook": {"units", "comm", "launcher", "viz"},
}
# on top: whatever they need
PROGRAMS = {"train", "serve", "commands", "__main__", "__init__"}


def part_of(file: Path) -> str:
    """The top-level part that a file belongs to: "nn", "launch", …"""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def walk_what_runs(node: ast.AST) -> Iterator[ast.AST]:
    """`ast.walk` without what only a type checker reads."""
    if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from walk_what_runs(child)


@cache
def tree_of(file: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(file.read_text())


@cache
def imported_modules(file: Path) -> set[str]:
    """The modules of minipar that a file imports, anywhere in it, as full dotted names."""
    package = ["minipar", *file.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in walk_what_runs(tree_of(file)):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.startswith("minipar")}
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if not module.startswith("minipar"):
                continue
            found.add(module)
            found |= {f"{module}.{name.name}" for name in node.names
                      if path_of(f"{module}.{name.name}")}
    return found


def path_of(module: str) -> Path | None:
    """The file of a module, if it is one."""
    place = ROOT.joinpath(*module.split("."))
    return next((p for p in (place.with_suffix(".py"), place / "__init__.py") if p.exists()), None)


def room(parts: Sequence[str]) -> str:
    """The room of a module or file: its top-level part; in school, a folder of it."""
    return ".".join(parts[:1 + (parts[0] == "school")]).removesuffix(".py")


def test_imports_go_down_only():
    wrong = {}
    for file in FILES:
        part = room(file.relative_to(PACKAGE).parts)
        if part in PROGRAMS:
            continue
        assert part in ALLOWED, f"say in {__file__} what minipar/{part} may import"
        others = {room(module.split(".")[1:]) for module in imported_modules(file)
                  if "." in module}
        if more := others - {part} - ALLOWED[part]:
            wrong[str(file.relative_to(ROOT))] = f"{part} must not import {sorted(more)}"
    assert not wrong


def test_no_file_imports_itself_in_a_circle():
    graph = {file: {path_of(m) for m in imported_modules(file)} - {None, file} for file in FILES}
    # A package's __init__ gathers its files, which may name the package: no circle of their own.
    graph = {file: {t for t in targets if t != file.parent / "__init__.py"}
             for file, targets in graph.items()}
    done: set[Path] = set()

    def visit(file: Path, path: tuple[Path, ...]) -> None:
        assert file not in path, " → ".join(p.name for p in (*path[path.index(file):], file))
        if file not in done:
            for target in graph[file]:
                visit(target, (*path, file))
            done.add(file)
    for file in FILES:
        visit(file, ())


def test_the_environment_is_read_in_one_place():
    reading = [str(file.relative_to(ROOT)) for file in FILES for node in ast.walk(tree_of(file))
               if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")]
    assert set(reading) == {"minipar/environment.py"}


def test_nothing_is_pickled():
    assert [file for file in FILES for text in ("import pickle", "allow_pickle=True")
            if text in file.read_text()] == []


@cache
def lines_of_code(text: str) -> set[int]:
    """The numbers of the lines that hold code: no blank lines, comments or docstrings."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
              tokenize.ENDMARKER}
    lines: set[int] = set()
    for before, token, after in zip([tokens[0], *tokens], tokens, [*tokens[1:], tokens[-1]]):
        alone = (before.type in layout or token is tokens[0]) and after.type == tokenize.NEWLINE
        if token.type not in layout and not (token.type == tokenize.STRING and alone):
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def test_a_file_is_one_idea_of_at_most_250_lines_of_code():
    texts = {str(file.relative_to(ROOT)): file.read_text()
             for file in [*FILES, *(ROOT / "tests").rglob("*.py")]}
    lengths = {file: (len(lines_of_code(text)), len(text.splitlines()))
               for file, text in texts.items() if len(text.splitlines()) > 250}
    assert {file: length for file, length in lengths.items()
            if length[0] > 250 or length[1] > 400} == {}
