"""Every row of the study is what commands make of the same options: the same arrays and bytes."""

from dataclasses import replace

import numpy as np
import pytest

from minipar import checkpoint as files
from minipar.commands.main import main
from minipar.compression_study.measure import ROWS
from minipar.compression_study.subjects import QUICK
from minipar.compression_study.versions import VersionBuilder

pytestmark = pytest.mark.usefixtures("no_pictures")

# Commands by the study's version: what they begin with ("" is training), and their options.
STUDENT = "--temperature 2 --alpha 0.5"
COMMANDS = {
    "dense": ("train", "", ""), "dense, more steps": ("train", "", ""),
    "pruned 50 %": ("prune", "dense", "--amount 0.5"),
    "pruned 80 %": ("prune", "dense", "--amount 0.8"),
    "pruned 90 %": ("prune", "dense", "--amount 0.9"),
    "2:4": ("prune", "dense", "--method 2:4"),
    "structured 50 %": ("prune", "dense", "--method structured --amount 0.5"),
    "int8": ("quantize", "dense", "--bits 8"),
    "int8, inputs too": ("quantize", "dense", "--bits 8 --activations"),
    "int4": ("quantize", "dense", "--bits 4"),
    "int4, GPTQ": ("quantize", "dense", "--bits 4 --method gptq"),
    "fp8": ("quantize", "dense", "--format fp8"),
    "mxfp8": ("quantize", "dense", "--format mxfp8"),
    "mxfp4": ("quantize", "dense", "--format mxfp4"),
    "pruned 80 % + int8": ("quantize", "pruned 80 %", "--bits 8"),
    "small, from labels": ("train", "", "student"),
    "small, distilled": ("distill", "dense", "student"),
}


def words(sizes):
    return [word for name, value in sizes.items() for word in (f"--{name}", str(value))]


def run(subject, folder, name):
    """Run the command of a version."""
    command, start, options = COMMANDS[name]
    of_student = words(subject.student) if options == "student" else []
    line = [command, *([str(folder / start)] if start else words(subject.sizes)), *of_student]
    line += options.replace("student", STUDENT if command == "distill" else "").split()
    if command in ("train", "distill"):
        line += ["--steps", str(subject.steps)]
    assert main([*line, "--out", str(folder / name)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("subject", QUICK, ids=lambda subject: subject.name)
def test_every_row_is_what_commands_make(subject, tmp_path):
    """Without fine-tuning, which the study begins with a new optimizer."""
    subject = replace(subject, steps=8, more=0)
    study, own = tmp_path / "study", tmp_path / "own"
    VersionBuilder(subject, 0, study, lambda: None).make()
    assert set(COMMANDS) == {row.file for row in ROWS}
    for name in COMMANDS:
        run(subject, own, name)
        ours, theirs = (files.load(folder / name).model for folder in (own, study))
        assert {key: array.nbytes for key, array in ours.items()} == {
            key: array.nbytes for key, array in theirs.items()}, name
        for key, array in ours.items():
            np.testing.assert_array_equal(array, theirs[key], err_msg=f"{name}: {key}")
