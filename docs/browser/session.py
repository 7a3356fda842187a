"""What the page asks of Python: run a lesson on simulated ranks, check an exercise.

    worker.mjs ──▶ run_lesson("01_messages", 4, "def …")     prints what the lesson prints
               ──▶ check_exercise("ring", "def ring(…): …")  prints what `exercise check` prints

Both begin with minipar's modules imported afresh, from the source tree in the worker's memory.
There is no matplotlib: a lesson's picture is that of the recorded run.
"""

import importlib.abc
import importlib.machinery
import runpy
import shutil
import sys
import traceback
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
OUT = Path("/tmp/out")
WIDTH = 100         # characters of a line
originals: dict[str, str] = {}          # by file: the text before any exercise


class NoPictures(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a matplotlib in which each name is an empty class: enough to import minipar.viz."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        """The specification of matplotlib and its modules; None for others."""
        if fullname.partition(".")[0] != "matplotlib":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Let the module make its names."""
        def make(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})
        vars(module)["__getattr__"] = make


def run_lesson(name: str, num_ranks: int, algorithm: str | None = None) -> bool:
    """Run a lesson, perhaps with the learner's `algorithm`; return whether it ran to its end."""
    _begin()
    if algorithm is not None:
        from support import page
        script = ROOT / "lessons" / f"{name}.py"
        text = originals.setdefault(f"lessons/{name}.py", script.read_text(encoding="utf-8"))
        script.write_text(text.replace(page.algorithm(script).text, algorithm.rstrip()),
                          encoding="utf-8")
    from support.kit import Lesson
    for method in ("picture", "page"):
        setattr(Lesson, method, _skip)
    sys.argv = [f"{name}.py", "--ranks", str(num_ranks), "--out", str(OUT)]
    try:
        runpy.run_path(str(ROOT / "lessons" / f"{name}.py"), run_name="__main__")
    except SystemExit as end:
        return not end.code
    except Exception:                   # a SyntaxError of the learner's, too
        traceback.print_exc()
        return False
    return True


def _skip(lesson: Any, draw: Any) -> None:
    """Leave out a picture."""


def check_exercise(name: str, written: str) -> bool:
    """Check `written`, the learner's function, and explain the result; return whether it passes."""
    _begin()
    from rich.console import Console

    from minipar.school.exercises.check import examine, explain
    from minipar.school.exercises.workspace import Workspace
    from minipar.school.toml_files import SchoolError
    workspace = Workspace(ROOT)
    exercise = workspace.find(name)
    for target in exercise.targets:
        originals.setdefault(target.file, (ROOT / target.file).read_text(encoding="utf-8"))
    workspace.start(exercise)
    path = ROOT / exercise.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(workspace.block(exercise), written.rstrip()), encoding="utf-8")
    console = Console(width=WIDTH, highlight=False, markup=False)
    try:
        verdict = examine(workspace, exercise, 0.0, judge=judge)
    except SchoolError as error:
        console.print(f"✗ {name}: {error}")
        return False
    explain(workspace, console, exercise, verdict)
    return verdict.passed


def judge(root: Path, exercise: Any, variants: dict[str, Any], lines: tuple[int, int],
          limit: float) -> dict[str, Any]:
    """The outcome of each variant, tested in this process.

    The page ends a test that does not end by itself; `limit` is not used.
    """
    from minipar.school.exercises.judge import outcome_of
    from minipar.school.exercises.runner import run_variant
    job = {"root": str(root), "file": exercise.file, "lines": lines, "tests": exercise.tests,
           "stop_at_first": True}
    return {name: outcome_of(run_variant(job, patches)) for name, patches in variants.items()}


def _begin() -> None:
    """Put the references back, and drop the tree's modules, so that they are imported again."""
    for file, text in originals.items():
        (ROOT / file).write_text(text, encoding="utf-8")
    shutil.rmtree(ROOT / ".exercises", ignore_errors=True)
    for name in list(sys.modules):
        file = getattr(sys.modules[name], "__file__", None)
        if file and file.startswith(f"{ROOT}/") and "docs/browser" not in file:
            del sys.modules[name]


if find_spec("matplotlib") is None:
    sys.meta_path.append(NoPictures())
