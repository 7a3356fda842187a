"""minipar train --remat: its mistakes, the same losses, what it says."""

import re
from functools import cache

import numpy as np
import pytest

from minipar.commands.main import main
from tests.train.test_train import SMALL, losses, parse

MISTAKES = {
    "half": "takes none, selective, full, every:2, sqrt or optimal:64MB, not 'half'",
    "every:0": "not 'every:0'",
    "every": "not 'every'",
    "optimal:3XB": "'3XB' is no number of bytes: write 64MB",
    "optimal:1KB": " bytes, however much is recomputed: give as much, or a smaller --batch",
    "optimal:1KB --mesh pp=2 --layers 6": "a rank, which has 2 microbatches in flight, take ",
    "optimal:1KB --mesh tp=2": "however much is recomputed: give as much",
    "selective --data digits": "choose full, every:2, sqrt",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_one_line(words, capsys):
    with pytest.raises(SystemExit) as end:
        raise SystemExit(main(["train", *SMALL, "--remat", *words.split()]))
    lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert len(lines) == 1 and MISTAKES[words] in lines[0], lines


@pytest.mark.parametrize("words", [
    "", "--ranks 2 --accumulate 2", "--mesh pp=2,dp=2", "--data digits --ranks 2",
    "--precision bf16",
    "--mesh pp=2 --schedule interleaved --layers 3", "--mesh pp=2 --data digits"])
@pytest.mark.one_in(2)
def test_the_least_that_is_named_works_and_less_does_not(words, capsys):
    run = ["train", *SMALL, "--dropout", "0.1", "--steps", "1", *words.split(), "--remat"]
    assert main([*run, "optimal:1"]) == 2
    least = re.search(r"take ([\d,]+) bytes", capsys.readouterr().err)[1].replace(",", "")
    assert main([*run, f"optimal:{int(least) - 1}"]) == 2
    assert not main([*run, f"optimal:{least}"])


@pytest.mark.parametrize("words", ["", "--mesh tp=2", "--mesh pp=2,dp=2", "--strategy fsdp"])
@pytest.mark.parametrize("remat", ["selective", "sqrt", "optimal:60KB"])
@pytest.mark.one_in(2)
def test_the_losses_are_the_same_bit_for_bit(words, remat):
    assert losses_of(f"{words} --remat {remat}") == losses_of(words)


@cache
def losses_of(words):
    num_ranks = 4 if "pp=2,dp=2" in words else 2 if "mesh" in words or "fsdp" in words else 1
    return losses(num_ranks, parse("--layers", "3", "--steps", "3", "--dropout", "0.1",
                                   *words.split()))


@pytest.mark.parametrize("words, said", [
    ("--remat full", "in brackets: embed (h.0) (h.1) head; of 4 all-reduces in the forward of its "
                     "layers 2 are repeated"),
    ("--remat every:2 --dropout 0.1", "embed (h.0 h.1) head; of 4 all-reduces in the forward of "
                                      "its layers 4 are repeated"),
    ("--remat full --sequence-parallel", "of 8 all-gathers and reduce-scatters in the forward of "
                                         "its layers 6 are repeated"),
    # its ids again cost nothing
    ("--remat optimal:1MB", ": (embed) h.0 h.1 head; of 4 all-reduces in the forward of "
                            "its layers 0 are repeated")])
def test_what_it_says(words, said, capsys):
    main(["train", *SMALL, "--layers", "2", "--steps", "1", "--mesh", "tp=2", "--verify", "1",
          *words.split()])
    out = capsys.readouterr().out
    assert f"ddp, {' '.join(words.split()[:2])[2:]}" in out.replace(", sequence parallel", "")
    assert said in out and "the same: after 1 steps in float64" in out


def test_a_resumed_run_computes_again_what_it_did(tmp_path, capsys):
    words = [*SMALL, "--remat", "full", "--out", str(tmp_path)]
    assert not main(["train", *words, "--steps", "2"])
    assert not main(["train", "--resume", str(tmp_path), "--steps", "3"])
    assert capsys.readouterr().out.count("ddp, remat full, float32") == 2
    assert np.load(tmp_path / "checkpoint.npz")
