"""The spine (docs/spine.txt): short enough to be read, and what is read there is what runs.

And how many files a strategy loads, and a step runs.
"""

import ast
import json
import re
import subprocess
import sys
from typing import NamedTuple

import pytest

from minipar.environment import find_mpirun, mpirun_environment
from tests.repository.test_layering import ROOT, lines_of_code

SPINE = ROOT / "docs" / "spine.txt"
STRATEGIES, FIRST_STRATEGY = 2604, 985                  # lines of code at most
GPT, WORLD, INFERENCE, GSPMD = 780, 842, 1140, 536
GSPMD_FILES = 6
LOADED, ZERO1_STEP, MESH_STEP = 83, 30, 42              # files at most
I, II, III, IV, V, CALLED = range(6)                    # the parts; what V calls
FIRST = "minipar/parallel/data/ddp_by_autograd.py"
PROGRAM = [sys.executable, "-m", "tests.support.spine_programs"]


class Entry(NamedTuple):
    """A line of the list: a file, and the definitions to read; none: all of them."""

    file: str
    names: tuple[str, ...]


def parts() -> list[list[Entry]]:
    """The entries of parts I to V, of what part V calls, and of what is loaded only."""
    found: list[list[Entry]] = []
    for line in SPINE.read_text().splitlines():
        if line.startswith(("# Part ", "# Called", "# Loaded")):
            found.append([])
        elif line and not line.startswith("#"):
            file, _, names = line.partition(" ")
            found[-1].append(Entry(file, tuple(re.findall(r"\w+", names))))
    return found


def definitions(text: str) -> dict[str, set[int]]:
    """The lines of each function and class of a module."""
    found: dict[str, set[int]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found.setdefault(node.name, set()).update(range(first, node.end_lineno + 1))
    return found


def count(entries: list[Entry]) -> list[int]:
    """Lines of code up to each entry; those outside definitions count where a file comes first."""
    totals, seen = [0], set()
    for file, names in entries:
        text = (ROOT / file).read_text()
        code, within = lines_of_code(text), definitions(text)
        lines = set().union(*(within[name] for name in names or within))
        if file not in seen:
            lines |= code - set().union(*within.values())
        seen.add(file)
        totals.append(totals[-1] + len(code & lines))
    return totals[1:]


def read(entries: list[Entry]) -> set[str]:
    """"file: name" of all definitions to read."""
    return {f"{file}: {name}" for file, names in entries
            for name in names or definitions((ROOT / file).read_text())}


def test_it_fits_its_budgets():
    totals = [count(part)[-1] for part in parts()[:CALLED]]
    first = next(total for entry, total in zip(parts()[I], count(parts()[I]))
                 if entry.file == FIRST)
    budgets = [STRATEGIES, GPT, WORLD, INFERENCE, GSPMD]
    assert all(total <= most for total, most in zip(totals, budgets)), (totals, budgets)
    assert first <= FIRST_STRATEGY, first
    text = SPINE.read_text()
    assert all(f"At most {most} lines of code" in text for most in budgets)
    assert f"before line {FIRST_STRATEGY}." in text
    for page in "README.md", "docs/pages/design.md":
        shown = " ".join((ROOT / page).read_text().split())
        assert f"at most {STRATEGIES:,} lines" in shown, page
        assert f"at most {INFERENCE:,} lines" in shown, page


def test_it_names_what_there_is_and_nothing_twice():
    entries = [entry for part in parts() for entry in part]
    unknown = [f"{file}: {name}" for file, names in entries for name in names
               if name not in definitions((ROOT / file).read_text())]
    assert not unknown, f"docs/spine.txt names {unknown}"
    all_names = [name for entry in entries for name in read([entry])]
    assert len(set(all_names)) == len(all_names)


def test_lines_of_code_are_counted(tmp_path):
    text = ('"""Doc\nstring."""\n\n# comment\nx = 1\n\n\ndef f():\n    """Doc."""\n'
            '    return """a\nb"""\n')
    assert len(lines_of_code(text)) == 4
    file = tmp_path / "a.py"
    file.write_text(text + "\n\n@f\ndef g():\n    pass\n")
    assert count([Entry(str(file), ("g",)), Entry(str(file), ("f",))]) == [4, 7]


def run_by(command: list[str], **options) -> tuple[set[str], list[str]]:
    """"file: name" of what a program runs, and the files that it loads."""
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=120, **options)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    return {re.sub(r"(\.py: \w+).*", r"\1", place) for place in seen["ran"]
            if ".py: <lambda>" not in place}, seen["loaded"]        # of a module's own table


def check(command: list[str], *read_before: int, **options) -> None:
    """These parts list what a program runs; the spine names what else it loads."""
    ran, loaded = run_by(command, **options)
    in_parts = [entry for i in read_before for entry in parts()[i]]
    unread = sorted(ran - read(in_parts))
    assert not unread, f"these run, and docs/spine.txt does not name them: {unread}"
    listed = {entry.file for part in parts() for entry in part}
    others = [file for file in loaded
              if file not in listed and not file.endswith("__init__.py")]
    assert not others, f"these are loaded, and docs/spine.txt does not list them: {others}"


def test_what_part_i_runs_is_what_is_read():
    check([*PROGRAM, "strategies"], I, III)


def test_what_part_ii_runs_is_what_is_read():
    check([*PROGRAM, "gpt"], I, II, III)


def test_what_the_simulated_cluster_runs_is_what_is_read():
    check([*PROGRAM, "simulated"], I, III)


def test_what_part_iv_runs_is_what_is_read():
    check([*PROGRAM, "inference"], I, II, III, IV)


def test_part_v_is_six_files_and_runs():
    """All of minipar/gspmd that runs is read in six files, or is in a file that they call."""
    six, called = {file for file, _ in parts()[V]}, {file for file, _ in parts()[CALLED]}
    assert len(six) <= GSPMD_FILES and not six & called
    everything, _ = run_by([*PROGRAM, "gspmd"])
    ran = {place for place in everything if place.startswith("minipar/gspmd/")}
    assert {place.split(":")[0] for place in ran} == six | called
    unread = sorted(place for place in ran - read(parts()[V]) if place.split(":")[0] in six)
    assert not unread, f"these run, and docs/spine.txt does not name them: {unread}"


@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun: pip install '.[mpi]'")
def test_what_real_ranks_run_is_what_is_read():
    check([find_mpirun(), "-n", "2", *PROGRAM, "mpi"], I, III, env=mpirun_environment())


def test_what_a_strategy_loads():
    """Files of minipar, `__init__.py` too: a reader who follows imports opens each."""
    code = ("import sys, minipar.parallel.strategy;"
            "print(sum(name.split('.')[0] == 'minipar' for name in sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= LOADED


@pytest.mark.parametrize("program, most", [("zero1_step", ZERO1_STEP), ("mesh_step", MESH_STEP)])
def test_what_a_step_runs(program, most):
    """Files of minipar without the simulated world: a reader who follows a step opens each."""
    done = subprocess.run([*PROGRAM, program], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    files = {place.split(":")[0] for place in json.loads(done.stdout)["ran"]}
    files = {file for file in files if not file.startswith("minipar/comm/simulated/")}
    assert 20 < len(files) <= most, (len(files), sorted(files))
