"""A process that runs an exercise's tests on variants of the source, one after the other.

    python -m minipar.exercises.runner DIRECTORY

    DIRECTORY/job.json   root, tests, file, lines and limit; variants: by name, for each file the
                         functions that get another body
             /results    one line of JSON per variant, written as soon as it is known
             /stack      where it was when a variant had taken too long

Nothing is written into the work tree: a finder hands Python the changed modules.  For each variant
minipar and its tests are imported anew, which takes a tenth of the time of a new process.
"""

import ast
import faulthandler
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from .surgery import graft


class GraftLoader(importlib.machinery.SourceFileLoader):
    """Compiles the source of a module with some functions exchanged."""

    def __init__(self, name: str, path: str, grafts: Sequence[tuple[str, str]]):
        super().__init__(name, path)
        self.grafts = grafts

    def get_code(self, fullname: str) -> CodeType:
        """Never from a cached .pyc: it may be as old as the last second."""
        tree = ast.parse(self.get_data(self.path), self.path)
        for function, block in self.grafts:
            graft(tree, function, block)
        return compile(tree, self.path, "exec")


class GraftFinder(importlib.abc.MetaPathFinder):
    """Finds the modules in `grafts`, by file relative to `root`; leaves the others to Python."""

    def __init__(self, root: Path, grafts: dict[str, list]):
        self.root = root
        self.grafts = {file.removesuffix(".py").replace("/", "."): (file, functions)
                       for file, functions in grafts.items()}

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        """See importlib.abc.MetaPathFinder."""
        if fullname not in self.grafts:
            return None
        file, functions = self.grafts[fullname]
        loader = GraftLoader(fullname, str(self.root / file), functions)
        return importlib.util.spec_from_file_location(fullname, loader.path, loader=loader)


class Recorder:
    """A pytest plugin: counts what passed, and notes of each failure what a learner wants to know.

    `file` is the path of the exercise's source, `lines` the first and last line of its function.
    """

    def __init__(self, file: str, lines: Sequence[int]):
        self.file, self.lines = file, range(lines[0], lines[1] + 1)
        self.num_passed, self.failures, self.seconds = 0, [], 0.0

    def pytest_exception_interact(self, node, call, report) -> None:
        """A test raised, or could not be imported."""
        error = call.excinfo.value
        if isinstance(error, pytest.Collector.CollectError) and error.__cause__ is not None:
            error = error.__cause__                         # why the tests could not be imported
        message = f"{error.filename}, line {error.lineno}: {error.msg}" \
            if isinstance(error, SyntaxError) else str(error)
        inside = [(entry.lineno + 1, str(entry.statement).strip())
                  for entry in call.excinfo.traceback
                  if str(entry.path) == self.file and entry.lineno + 1 in self.lines]
        self.failures.append({
            "test": node.nodeid, "error": type(error).__name__, "message": message,
            "notes": getattr(error, "__notes__", []), "line": inside[-1] if inside else None,
            "printed": getattr(report, "capstdout", "")})

    def pytest_runtest_logreport(self, report) -> None:
        """A phase of a test is over."""
        self.num_passed += report.when == "call" and report.passed
        self.seconds += report.duration
        if report.skipped:
            self.failures.append({"test": report.nodeid, "error": "Skipped", "notes": [],
                                  "message": str(report.longrepr[-1]), "line": None, "printed": ""})


def run_variant(job: dict, grafts: dict[str, list]) -> dict:
    """Run the tests with `grafts` in place; afterwards forget all that was imported for it."""
    modules, path, root = set(sys.modules), list(sys.path), Path(job["root"])
    finder, recorder = GraftFinder(root, grafts), Recorder(str(root / job["file"]), job["lines"])
    sys.meta_path.insert(0, finder)
    try:
        status = pytest.main(
            [*job["tests"], "-q", "--tb=no", "--no-header", f"--rootdir={root}", "-o", "addopts=",
             "-p", "no:cacheprovider", "-p", "no:faulthandler",     # it would stop our own timer
             *(["-x"] if job["stop_at_first"] else [])], plugins=[recorder])
    finally:
        sys.meta_path.remove(finder)
        sys.path[:] = path
        own = (f"{root}/minipar/", f"{root}/tests/")
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(own):
                del sys.modules[name]
                package, _, module = name.rpartition(".")
                if package in sys.modules:          # `from package import module` must not find it
                    vars(sys.modules[package]).pop(module, None)
    return {"status": int(status), "num_passed": recorder.num_passed,
            "seconds": recorder.seconds, "failures": recorder.failures}


def main(directory: Path) -> None:
    """Run the job; write the stack and end the process if a variant takes too long."""
    job = json.loads((directory / "job.json").read_text())
    sys.dont_write_bytecode = True
    with open(directory / "results", "w") as results, open(directory / "stack", "w") as stack:
        for name, grafts in job["variants"].items():
            faulthandler.dump_traceback_later(job["limit"], exit=True, file=stack)
            result = run_variant(job, grafts)
            faulthandler.cancel_dump_traceback_later()
            results.write(json.dumps({"variant": name, **result}) + "\n")
            results.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
