"""The gate: every exercise is proven.  Of the tool itself: tests/school/exercises/test_tool*.py."""

import ast
import subprocess
import sys

import pytest

from minipar.commands.course import exercise as command
from minipar.environment import mpirun_environment
from minipar.school.exercises import entries, source

EXERCISES = entries.load(command.ROOT)


@pytest.mark.slow           # `make exercises`, which CI calls too, is the same
def test_every_exercise_is_proven():
    """Reference passes, stub fails, every mutant fails; in a process of its own, as CI and people
    call it."""
    run = subprocess.run([sys.executable, "-m", "minipar", "exercise", "prove"], cwd=command.ROOT,
                         env=mpirun_environment(), capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(EXERCISES)} exercises proven" in run.stdout


def test_the_manifest_is_what_the_course_needs():
    assert len(EXERCISES) >= 8
    for name, entry in EXERCISES.items():
        bodies = [source.parse_block(source.as_block(m.body)) for m in entry.mutants]
        dumped = {"\n".join(map(ast.dump, source.body_nodes(body))) for body in bodies}
        assert len(dumped) == len(bodies), f"{name} has the same mutant twice"
        assert len(entry.hints) >= 3 and entry.points > 0


def test_nothing_of_the_library_is_needed_to_mend_it():
    """The tool works while the code that learners change does not even parse."""
    code = ("import sys, minipar.commands.course.exercise; print(sorted(m for m in sys.modules "
            "if m.startswith('minipar.') and not m.startswith('minipar.school.exercises')))")
    run = subprocess.run([sys.executable, "-c", code], cwd=command.ROOT, capture_output=True,
                         text=True, check=True)
    assert run.stdout == ("['minipar.commands', 'minipar.commands.course', "
                          "'minipar.commands.course.exercise', "
                          "'minipar.commands.parser', 'minipar.commands.tables', "
                          "'minipar.environment', 'minipar.school', 'minipar.school.toml_files']\n")
    assert not {"minipar/commands/parser.py", "minipar/environment.py"} \
        & {entry.file for entry in EXERCISES.values()}
