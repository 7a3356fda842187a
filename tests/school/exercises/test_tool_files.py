"""`start` and `restore` change only the function's lines, and all of them or none."""

import ast
import os
import shutil

import pytest

from minipar.commands.course import exercise as command
from minipar.school.exercises import entries, source, workspace
from minipar.school.exercises.workspace import Workspace

EXERCISES = entries.load(command.ROOT)


# One in five, and those that hide something; the others are slow.
ALL = [pytest.param(name, marks=[pytest.mark.slow] * (i % 5 > 0 and not entry.hidden))
       for i, (name, entry) in enumerate(EXERCISES.items())]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.one_in(12)
def test_a_stub_keeps_every_other_line_where_it_was(learner, name):
    targets = EXERCISES[name].targets
    before = {target.file: (learner.tree / target.file).read_text() for target in targets}
    assert learner("start", name)[0] == 0
    for file, text in before.items():
        rows = [source.locate(text, target.function) for target in targets if target.file == file]
        after = (learner.tree / file).read_text().split("\n")
        assert len(after) == len(text.split("\n"))
        assert [i for i, (a, b) in enumerate(zip(text.split("\n"), after)) if a != b
                and not any(row.body <= i < row.end for row in rows)] == []
    for target, order in zip(targets, ["exercise", *["hidden by exercise"] * len(targets)]):
        old = source.find_function(ast.parse(before[target.file]), target.function)
        text = (learner.tree / target.file).read_text()
        new = source.find_function(ast.parse(text), target.function)
        assert ast.get_docstring(new) == ast.get_docstring(old)
        assert ast.dump(new.args) == ast.dump(old.args)
        assert [*map(ast.dump, new.decorator_list)] == [*map(ast.dump, old.decorator_list)]
        (statement,) = source.body_nodes(new)
        assert isinstance(statement, ast.Raise)
        assert f"{order} {name}" in ast.unparse(statement)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.one_in(16)
def test_restore_brings_back_every_byte(learner, name):
    path = learner.tree / EXERCISES[name].file
    path.chmod(0o640)
    before = learner.snapshot()
    learner("start", name)
    learner.write(name, "# longer than before\n" * 60 + "return None")
    assert learner("restore", name)[0] == 0
    yours = learner.tree / f".exercises/{name}.yours.py"
    assert "return None" in yours.read_text()
    assert learner.snapshot() == {**before, yours: yours.read_bytes()}
    assert path.stat().st_mode & 0o777 == 0o640
    assert learner("restore", name)[0] == 2


SOURCE = '''\
import functools

class Outer:
    """Doc."""

    @functools.cache
    def plain(self):
        # a remark that belongs to the body

        return 2
        # so does this one

    # this one does not
    def odd(self):
        return """
text at another indentation"""

    def bare(self,
             y=1,
             ) -> int:
        @functools.cache
        def inner():
            return 1
        return inner()

    def one_line(self): return 1

    def only_doc(self):
        """Nothing else."""

def last():
    """Doc."""; x = 1
    return x
'''


@pytest.mark.parametrize("function, body", [
    ("Outer.plain", (7, 11)), ("Outer.odd", (14, 16)), ("Outer.bare", (20, 24)),
    ("Outer.bare.inner", (22, 23)), ("Outer.one_line", None), ("Outer.only_doc", None),
    ("last", None), ("Outer", None), ("plain", None)])
def test_locate(function, body):
    rows = source.locate(SOURCE, function)
    assert (rows and (rows.body, rows.end)) == body
    if rows and function != "Outer.odd":
        broken = SOURCE.replace("import functools", "import functools (")
        guess = source.guess(broken, function)
        assert (guess.first, guess.end) == (rows.first, rows.end)
    if rows:
        block = source.block_at(SOURCE, rows)
        assert source.replace_block(SOURCE, rows, block) == SOURCE
        assert source.same_body(source.parse_block(block),
                                 source.find_function(ast.parse(SOURCE), function))


def test_a_write_that_fails_leaves_the_old_file(learner, monkeypatch):
    def fail(*paths):
        raise OSError("disk full")
    before = learner.snapshot()
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        workspace.write(learner.tree / EXERCISES["unbroadcast"].file, "half a file")
    status, said = learner("start", "unbroadcast")
    assert status == 2 and "work tree that you may write in" in said
    assert learner.snapshot() == before


def test_an_interrupted_start_can_be_restored(learner, monkeypatch):
    """The reference is kept before the source changes."""
    workspace, calls, replace = Workspace(learner.tree), [], os.replace
    before = learner.snapshot()

    def fail_the_second_time(*paths):
        calls.append(paths)
        if len(calls) == 2:
            raise KeyboardInterrupt
        replace(*paths)
    monkeypatch.setattr(os, "replace", fail_the_second_time)
    with pytest.raises(KeyboardInterrupt):
        workspace.start(workspace.find("unbroadcast"))
    monkeypatch.undo()
    assert learner("restore", "unbroadcast")[0] == 0
    shutil.rmtree(learner.tree / ".exercises")
    assert learner.snapshot() == before
