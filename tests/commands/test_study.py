"""The study: versions made by commands, measured together; what is there already is kept."""

import re
import shutil

import numpy as np
import pytest

from minipar.commands.compress import study
from minipar.commands.compress.study import COMMANDS, FULL, QUICK, RUN_SPARSE, TUNED, study_table
from minipar.commands.main import main

NAMES = {*COMMANDS, *(f"{name}, run sparse" for name in RUN_SPARSE)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, no_pictures):
    """The folder of a quick study."""
    out = tmp_path_factory.mktemp("a study")
    assert main(["study", "--quick", "--out", str(out)]) == 0
    return out


def rows(folder, subject) -> dict[str, list[str]]:
    """The rows of a subject in study.md, by version."""
    text = (folder / "study.md").read_text().split(f"**{subject.name}**")[1].split("**")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")]
             for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in cells[2:]}


@pytest.mark.parametrize("subject", QUICK, ids=lambda subject: subject.name)
def test_every_version_has_a_row_and_the_numbers_fit_together(folder, subject):
    found = rows(folder, subject)
    assert set(found) == NAMES and (folder / "study.png").read_bytes().startswith(b"\x89PNG")
    size, flops = ({name: float(row[i]) for name, row in found.items()} for i in (3, 5))
    assert size["int4"] < size["int8"] < 0.5 < size["dense"] == 1
    assert size["pruned 90 %"] < size["pruned 80 %"] < size["pruned 50 %"] < 1
    assert size["pruned 80 % + int8"] < size["int8"]
    assert flops["pruned 90 %, run sparse"] < flops["structured 50 %"] < flops["pruned 90 %"] == 1


def test_a_study_goes_on_with_what_is_missing(folder, capsys, tmp_path, monkeypatch):
    """The same quality, bytes and FLOPs from one command as from all of them."""
    before = rows(folder, QUICK[0])
    shutil.copytree(folder / QUICK[0].name, tmp_path / QUICK[0].name)
    shutil.rmtree(tmp_path / QUICK[0].name / "0" / "pruned 80 %")
    monkeypatch.setattr(study, "QUICK", QUICK[:1])
    capsys.readouterr()
    assert main(["study", "--quick", "--out", str(tmp_path)]) == 0
    ran = re.findall("^minipar (.*)", capsys.readouterr().out, re.MULTILINE)
    assert len(ran) == 1 and ran[0].startswith("prune ") and "--amount 0.8" in ran[0]
    after = rows(tmp_path, QUICK[0])
    assert {name: row[:6] for name, row in after.items()} == {
        name: row[:6] for name, row in before.items()}


def test_a_command_that_fails_ends_the_study(tmp_path, capsys):
    dense = tmp_path / QUICK[0].name / "0" / "dense"
    dense.mkdir(parents=True)
    (dense / "checkpoint.npz").write_bytes(b"no checkpoint")
    assert main(["study", "--quick", "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1 and str(dense) in printed.err
    assert printed.out.count("minipar train --resume") == printed.out.count("\n") == 1


@pytest.mark.parametrize(("words", "message"), [
    (["--seeds", "0"], "--seeds must be at least 1, not 0"),
    (["--quick", "--out", "/dev/null/x"], "/dev/null")])
def test_mistakes_are_one_line(words, message, capsys, no_pictures):
    assert main(["study", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(("subject", "sign"), [*zip(FULL, (1, -1))], ids=["digits", "text"])
def test_gains_are_taken_seed_by_seed_from_the_right_reference(subject, sign):
    quality = {"dense": [90, 80], TUNED: [91, 85], "int8": [89, 81], "pruned 50 %": [90, 82]}
    table = study_table(subject, {name: np.array([[a, 1000, 5, 2e-3], [b, 500, 5, 1e-3]])
                                  for name, (a, b) in quality.items()})
    gain = {row[0]: row[2] for row in table.rows}
    digits = 1 if sign == 1 else 3
    assert gain["dense"] is None
    assert gain["int8"].text == f"{0:+.{digits}f} ± {1:.{digits}f}"             # -1 and 1
    assert gain[TUNED].text == f"{3 * sign:+.{digits}f} ± {2:.{digits}f}"       # 1 and 5
    assert gain["pruned 50 %"].text == f"{-2 * sign:+.{digits}f} ± {1:.{digits}f}"  # -1 and -3
    assert table.as_json()["rows"][0][1:] == pytest.approx(
        [85, None, 750, 1, 5, 1, 1.5e-3, 1])
    assert table.rows[0][1].text == f"{85:.{digits}f} ± {50**0.5:.{digits}f}"
    assert table.rows[0][3].text == "750 B"
