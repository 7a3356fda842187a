"""The form of a lesson: its script is its algorithm, and short (lessons/support/kit.py says it)."""

import ast
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from minipar.environment import find_mpirun, mpirun_environment
from tests.repository.test_layering import lines_of_code

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
MINIPAR = {("minipar.comm", "Communicator"), ("minipar.launcher", "launch")}

each_script = pytest.mark.parametrize("script", LESSONS, ids=lambda script: script.stem)


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "lessons")
    from support import page
    return page


def parts_of(script: Path) -> tuple[list[ast.stmt], list[ast.stmt], ast.FunctionDef]:
    """Imports, the definitions of the algorithm, and `main`."""
    body = ast.parse(script.read_text("utf-8")).body[1:-1]      # between docstring and launch
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    *own, main = body[len(imports):]
    assert body[:len(imports)] == imports and getattr(main, "name", "") == "main", \
        "imports, the algorithm, main, in this order"
    return imports, own, main


@each_script
def test_a_script_is_short(script):
    assert len(script.read_text("utf-8").splitlines()) <= 120


@each_script
def test_the_algorithm_is_whole_and_alone(script, page):
    imports, own, _ = parts_of(script)
    shown = page.algorithm(script)
    assert 15 <= len(lines_of_code(shown.text)) <= 60
    assert script.read_text("utf-8").splitlines()[shown.line - 1] == shown.text.splitlines()[0]
    names = {(node.module, alias.name) for node in imports if isinstance(node, ast.ImportFrom)
             for alias in node.names}
    assert {name for name in names if name[0].startswith("minipar")} <= MINIPAR
    for_main = {name for module, name in names if module.startswith("support")}
    assert {"Lesson", "Row", "compare_with_library"} <= for_main
    used = {node.id for part in own for node in ast.walk(part) if isinstance(node, ast.Name)}
    assert not used & for_main, "what is said and counted belongs into main"
    inside = [node for node in ast.walk(ast.parse(script.read_text("utf-8")))
              if isinstance(node, ast.Import | ast.ImportFrom)]
    assert len(inside) == len(imports), "imports stand at the top"


@each_script
def test_main_compares_with_the_library_once(script):
    *_, main = parts_of(script)
    calls = [node for node in ast.walk(main) if isinstance(node, ast.Call)
             and getattr(node.func, "id", "") == "compare_with_library"]
    assert len(calls) == 1 and ast.unparse(calls[0].args[0]) == "lesson"
    said = [ast.unparse(node.func) for node in ast.walk(main) if isinstance(node, ast.Call)]
    assert said.count("lesson.table") == 1 and not {"lesson.grid", "lesson.picture"} & {*said}


@pytest.mark.slow
@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun: pip install '.[mpi]'")
@each_script
def test_a_lesson_runs_on_four_real_ranks(script, tmp_path):
    done = subprocess.run([find_mpirun(), "-n", "4", sys.executable, script, "--out", tmp_path],
                          capture_output=True, timeout=60, encoding="utf-8",
                          env=mpirun_environment())
    assert done.returncode == 0, done.stderr
    assert "(4 real MPI ranks)" in " ".join(done.stdout.split())        # in 80 columns, too
    assert done.stdout.count("Takeaway:") == 1
    result = json.loads((tmp_path / script.stem[:2] / "lesson.json").read_text("utf-8"))
    assert result["seconds"] > 0


@each_script
def test_a_notebook_and_an_editor_have_the_algorithm(script, page, monkeypatch):
    """What they show is a piece of the script, so a changed piece can take its place."""
    text, own = script.read_text("utf-8"), page.algorithm(script).text
    assert text.count(own) == 1
    monkeypatch.setattr(sys, "argv", [str(script)])
    defined = {node.name for node in parts_of(script)[1] if hasattr(node, "name")}
    assert defined and defined <= {*runpy.run_path(str(script))}
