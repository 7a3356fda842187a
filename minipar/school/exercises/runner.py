"""The judge's process: run an exercise's tests with pytest on one variant of the source at a time.

    python -m minipar.school.exercises.runner

    stdin    one line of JSON: root, tests, file, lines, limit, stop_at_first (the first failed
             test ends a variant), token; and variants: by name, for each file the functions to
             replace, with their new blocks
    stdout   one line of JSON per variant, with the token, written as soon as the variant is done;
             or faulthandler's stack, if a variant exceeds the limit.  Tests print to stderr

The work tree is not changed: an import hook compiles the patched modules.  Each variant imports
minipar and the tests again, which takes a tenth of the time of a new process.
"""

import ast
import faulthandler
import importlib.abc
import importlib.machinery
import importlib.util
import json
import linecache
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import IO, Any

import pytest

from .source import patch_function
from .workspace import KEPT

# Python's audit events for actions that no exercise needs.
PROCESSES = ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.exec", "os.spawn",
             "os.posix_spawn", "pty.spawn")
SEARCHES = ("gc.get_objects", "gc.get_referrers", "gc.get_referents")
FILES = ("open", "os.link", "os.rename", "os.symlink", "shutil.copyfile")


class PatchedLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module with new bodies for some of its functions."""

    def __init__(self, name: str, path: str, patches: Sequence[tuple[str, str]]):
        super().__init__(name, path)
        self.patches = patches

    def get_code(self, fullname: str) -> CodeType:
        """The patched code; compiled every time, since a cached .pyc has a different variant."""
        tree = ast.parse(self.get_data(self.path), self.path)
        for function, block in self.patches:
            patch_function(tree, function, block)
        return compile(tree, self.path, "exec")


class PatchedFinder(importlib.abc.MetaPathFinder):
    """Finds the modules in `patches` (by file, relative to `root`); Python finds the others."""

    def __init__(self, root: Path, patches: dict[str, list]):
        self.root = root
        self.patches = {file.removesuffix(".py").replace("/", "."): (file, functions)
                       for file, functions in patches.items()}

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        """Return a spec with a PatchedLoader for a patched module, None for any other."""
        if fullname not in self.patches:
            return None
        file, functions = self.patches[fullname]
        loader = PatchedLoader(fullname, str(self.root / file), functions)
        return importlib.util.spec_from_file_location(fullname, loader.path, loader=loader)


class TestRecorder:
    """A pytest plugin: counts the tests that pass, and records each failure for the learner.

    `file` is the path of the exercise's source, `lines` the first and last line of its function.
    """

    def __init__(self, file: str, lines: Sequence[int]):
        self.file, self.lines = file, range(lines[0], lines[1] + 1)
        self.num_tests, self.num_passed, self.failures, self.seconds = 0, 0, [], 0.0

    def pytest_collection_finish(self, session) -> None:
        """Count the tests that pytest found."""
        self.num_tests = len(session.items)

    def pytest_exception_interact(self, node, call, report) -> None:
        """Record the exception of a test, or of the import of its module."""
        error = call.excinfo.value
        if isinstance(error, pytest.Collector.CollectError) and error.__cause__ is not None:
            error = error.__cause__                         # why the tests could not be imported
        message = f"{error.filename}, line {error.lineno}: {error.msg}" \
            if isinstance(error, SyntaxError) else str(error)
        inside = [entry.lineno + 1 for entry in call.excinfo.traceback
                  if str(entry.path) == self.file and entry.lineno + 1 in self.lines]
        stacks = getattr(error, "stacks", None)         # a deadlock: every rank waits
        if stacks:
            waiting = {rank: line for rank, stack in stacks.items() if (line := self._own(stack))}
            message = "\n".join(self._at_own_line(line, waiting) for line in message.split("\n"))
            inside = list(waiting.values())[:1]
        self.failures.append({
            "test": node.nodeid, "error": type(error).__name__, "message": message,
            "notes": getattr(error, "__notes__", []),
            "line": self._line(inside[-1]) if inside else None,
            "printed": getattr(report, "capstdout", "")})

    def _own(self, stack: Sequence[tuple[str, int]]) -> int | None:
        """The innermost line of the exercise's function on a stack."""
        return next((line for file, line in stack if file == self.file and line in self.lines),
                    None)

    def _at_own_line(self, text: str, waiting: dict[int, int]) -> str:
        """A line of a deadlock's report, with the learner's line in place of the test's."""
        found = re.match(r"( *rank (\d+) .* at ).+:\d+$", text)
        if not found or int(found[2]) not in waiting:
            return text
        return f"{found[1]}{self.file}:{waiting[int(found[2])]}"

    def _line(self, number: int) -> tuple[int, str]:
        linecache.checkcache(self.file)
        return number, linecache.getline(self.file, number).strip()

    def pytest_runtest_logreport(self, report) -> None:
        """Count a phase of a test that is over."""
        self.num_passed += report.when == "call" and report.passed
        self.seconds += report.duration
        if report.skipped:
            self.failures.append({"test": report.nodeid, "error": "Skipped", "notes": [],
                                  "message": str(report.longrepr[-1]), "line": None, "printed": ""})


def run_variant(job: dict, patches: dict[str, list]) -> dict:
    """Run the tests with `patches` in place; then drop the modules that they imported."""
    modules, path, root = set(sys.modules), list(sys.path), Path(job["root"])
    finder = PatchedFinder(root, patches)
    recorder = TestRecorder(str(root / job["file"]), job["lines"])
    sys.meta_path.insert(0, finder)
    try:
        status = pytest.main(
            [*job["tests"], "-q", "--tb=no", "--no-header", f"--rootdir={root}", "-o", "addopts=",
             # The first would stop our own timer; the others take half of the start-up time.
             "-pno:faulthandler", "-pno:hypothesispytest", "-pno:anyio", "-pno:cacheprovider",
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
    if not recorder.failures and recorder.num_passed < recorder.num_tests:
        recorder.failures.append({
            "test": "", "error": "Ended", "notes": [], "line": None, "printed": "", "message":
            f"the run ended after {recorder.num_passed} of {recorder.num_tests} tests"})
    return {"status": int(status), "num_passed": recorder.num_passed,
            "seconds": recorder.seconds, "failures": recorder.failures}


def fence(root: Path) -> Callable[[str, tuple], None]:
    """Return an audit hook that refuses the ways of looking up the answer.

    It refuses to open the references that the workspace keeps, to start processes, and to search
    all objects.  A process could ask git, and outlive this one.  Python cannot remove an audit
    hook, but this one is not a sandbox.
    """
    kept = os.path.join(os.path.realpath(root), KEPT)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in PROCESSES:
            raise PermissionError(f"{event}: an exercise must not start a process")
        if event in SEARCHES:
            raise PermissionError(f"{event}: an exercise must look at its arguments only")
        if event in FILES and isinstance(arguments[0], str | bytes | os.PathLike) \
                and os.path.realpath(os.fsdecode(arguments[0])).startswith(kept):
            raise PermissionError(f"an exercise must not read {KEPT}")
    return hook


def begin_job() -> tuple[dict, Callable[..., None], IO[str]]:
    """(the job on stdin, a function that writes a result with its token, the file for results).

    From here on stdout is what the learner's functions print, and `fence` is in place.
    """
    job = json.loads(sys.stdin.buffer.read())
    token, results = job.pop("token"), open(os.dup(1), "w")     # noqa: SIM115  -- until the end
    os.dup2(2, 1)
    sys.addaudithook(fence(Path(job["root"])))

    def tell(**fields: Any) -> None:
        results.write(json.dumps({"token": token, **fields}) + "\n")
        results.flush()
    return job, tell, results


def main() -> None:
    """Run the job; if a variant exceeds its limit, write the stack and end the process."""
    sys.dont_write_bytecode = True
    job, tell, results = begin_job()
    for name, patches in job["variants"].items():
        faulthandler.dump_traceback_later(job["limit"], exit=True, file=results)
        result = run_variant(job, patches)
        faulthandler.cancel_dump_traceback_later()
        tell(variant=name, **result)


if __name__ == "__main__":
    main()
