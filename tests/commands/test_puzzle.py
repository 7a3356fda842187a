"""`minipar puzzle`: each program is broken as its tool says, and its mend mends it."""

import pytest

from minipar.comm import Cluster
from minipar.commands.course.puzzle import check_program, load_main, source
from minipar.commands.main import main
from minipar.school.course.puzzles import load
from minipar.school.toml_files import SchoolError

PUZZLES = load()
SEEN = {        # words of what the tool says
    "embedding": ["gradient of wte.weight", "2 times as large", "the only one of"],
    "accumulation": ["gradient of wte.weight", "only the last microbatch"],
    "clipping": ["step 0, norm", "own part"],
    "dropout": ["forward of drop on rank 1", "another dropout mask"],
    "column": ["loss 1"],
    "bias": ["loss 0"],
    "ring": ["deadlock", "rank 3 waits to send to rank 0", "ring.py:18"],
    "epoch": ["deadlock", "part of all_reduce", "which has returned"],
    "evaluation": ["collective mismatch", "shape=(1,)", "ranks 1, 2, 3 called"],
    "order": ["collective mismatch", "shape=(3,)"],
    "overflow": ["deadlock", "receive from rank 3", "part of all_reduce"],
    "stages": ["deadlock", "rank 1 waits to send to rank 0 (tag 2"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys, *words):
    """The status of a command, and all that it prints on one line."""
    status = main([*map(str, words)])
    printed = capsys.readouterr()
    return status, " ".join((printed.out + printed.err).split())


def test_twelve_of_which_six_hang():
    assert len(PUZZLES) == 12 and PUZZLES.keys() == SEEN.keys()
    assert sum(puzzle.tool == "doctor" for puzzle in PUZZLES.values()) == 6


@pytest.mark.parametrize("name", PUZZLES)
@pytest.mark.one_in(3)
def test_the_program_is_broken_and_its_mend_mends_it(name, folder, capsys):
    status, text = said(capsys, "puzzle", "start", name)
    assert status == 0 and f"{name}.py" in text
    status, text = said(capsys, "puzzle", "check", name)
    assert status == 1 and all(word in text for word in [*SEEN[name], "is not mended"]), text
    assert said(capsys, "puzzle", "hint", name) == (0, PUZZLES[name].hint)
    status, text = said(capsys, "puzzle", "explain", name)
    assert status == 0 and PUZZLES[name].explanation in text and "+++ mended" in text
    mended = folder / "mended.py"
    mended.write_text(PUZZLES[name].mended((folder / f"{name}.py").read_text("utf-8")), "utf-8")
    status, text = said(capsys, "puzzle", "check", name, "--file", mended)
    assert (status, text) == (0, f"{name} is mended: {PUZZLES[name].ranks} ranks equal one."), text


@pytest.mark.parametrize("name, words", [
    ("column", "MatMul: the result of Tanh is I, .* but up is V, .* copy_to it"),
    ("bias", "Linear: bias is I, .* but the result of Tanh is V")])
def test_the_type_check_names_the_operation(name, words, folder):
    """As a reader would: check_types in the line above backward."""
    call = {"column": "weights, {'up', 'down'}",
            "bias": "{'up': up, 'down': down, 'bias': bias}, {'up', 'down'}"}[name]
    text = source(PUZZLES[name])
    for program in (text, PUZZLES[name].mended(text)):
        assert program.count("        loss.backward()\n") == 1
        (folder / f"{name}.py").write_text(
            "from minipar.parallel.check_types import check_types\n" + program.replace(
                "        loss.backward()\n",
                f"        check_types(loss, comm, {call})\n        loss.backward()\n"), "utf-8")
        if program == text:
            with pytest.raises(TypeError, match=words):
                Cluster(2).run(load_main(folder / f"{name}.py"))
        else:
            assert check_program(folder / f"{name}.py", 2) is None


def test_what_cannot_be_done_is_said_in_one_line(folder, capsys):
    assert "hint which puzzle? choose from embedding, " in said(capsys, "puzzle", "hint")[1]
    assert "there is no puzzle 'rign': did you mean ring?" in said(
        capsys, "puzzle", "hint", "rign")[1]
    assert said(capsys, "puzzle", "check", "ring")[0] == 2
    (folder / "ring.py").write_text("def main(comm): pass", "utf-8")
    status, text = said(capsys, "puzzle", "check", "ring")
    assert status == 1 and "keep the lines with record" in text
    (folder / "ring.py").write_text("def main(comm:", "utf-8")
    status, text = said(capsys, "puzzle", "check", "ring")
    assert status == 2 and "give a program with a function main(comm)" in text
    assert "exists already" in said(capsys, "puzzle", "start", "ring")[1]
    with pytest.raises(SchoolError, match="must stand once"):
        PUZZLES["ring"].mended("def main(comm): pass")
