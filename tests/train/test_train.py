"""The training program: its mistakes, its exactness, its files."""

import json

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.comm import Cluster
from minipar.commands.main import main, make_parser
from minipar.parallel.registry import strategies_with
from minipar.train import start_run, train_steps
from minipar.train.check import checked
from minipar.train.command_line import parse_config
from minipar.train.option import one_of
from minipar.train.setup.mesh import num_ranks_of
from minipar.train.start import saving
from minipar.train.tasks import make_task

SMALL = ["--width", "16", "--heads", "2", "--layers", "1", "--context", "8", "--batch", "6"]
TO_A_NAN = ["--steps", "9", "--warmup", "0", "--optimizer", "sgd", "--lr", "1e30", "--clip", "0"]


def parse(*words: str):
    return checked(parse_config(make_parser("train").parse_args(["train", *SMALL, *words])))


def losses(num_ranks: int, config) -> list[float]:
    def body(comm):
        state = start_run(comm, config, make_task(config))
        train_steps(comm, state, save_at=saving(comm, state))
        return state.losses
    return Cluster(num_ranks).run(body)[0][0]


MISTAKES = {
    "--heads 3": "width of 16 does not divide into 3 heads",
    "--set model.kv_heads=3": "cannot share 3 heads",
    "--mesh dp=3 --ranks 2": "for 3 ranks, but there are 2",
    "--mesh xp=2": "no axis 'xp', only pp (pipeline), dp (data), replicate (copies of what",
    "--mesh dp": "expected axis=size",
    "--mesh dp=2,dp=2": "given twice",
    "--mesh dp=²": "expected axis=size",
    "--mesh pp=99999999999": "99,999,999,999 ranks are more than can be simulated here",
    "--ranks 0": "--ranks must be at least 1, not 0",
    "--data missing.txt": "no file missing.txt",
    "--data .": "is not a file",
    "--context 1000000": "smaller context",
    "--batch 0": "--batch must be at least 1",
    "--steps x": "invalid int value",
    "--lr -1": "--lr must be a number >= 0",
    "--lr nan": "--lr must be a number >= 0",
    "--warmup 300": "less than --steps",
    "--dropout 1": "dropout rate",
    "--resume missing": "no checkpoint at missing",
    "--out setup.cfg": "cannot be written to",
    "--save-every 3": "add --out",
    "--data digits --sample 3": "--sample generates text, which does not go with --data digits",
    "--data digits --hidden 3,x": "sizes separated by commas",
    "--sample 3 --prompt \u2603": "'\u2603' at position 0",
    "--out /proc/minipar": "cannot be written to",
    "--width 1000000000000": "choose smaller sizes",
    "--unknown": "unrecognized arguments",
    "--strategy zero4": "invalid choice: 'zero4'",
    "--accumulate 0": "--accumulate must be at least 1, not 0",
    "--bucket-mb 0": "--bucket-mb must be a number >= 1e-06, not 0",
    "--bucket-mb nan": "--bucket-mb must be a number >= 1e-06, not nan",
    "--bucket-mb 1 --strategy fsdp":
        f"--bucket-mb needs --strategy {one_of(strategies_with('bucket_mb'))}, not fsdp: leave it",
    "--hybrid-shard 2 --ranks 2": "needs --strategy zero3 or fsdp, not ddp",
    "--every 2 --ranks 2":
        f"--every needs --strategy {one_of(strategies_with('every'))}, not ddp: leave it out",
    "--strategy diloco --every 4 --set parallel.fragments=3": "a number of fragments that divides",
    "--strategy elastic --ranks 4 --set parallel.pull=0.5": "choose a number between 0 and 1 / 4",
    "--strategy diloco --set parallel.pull=0.1":
        "--set parallel.pull needs --strategy elastic, not diloco: leave it out, or choose",
    "--strategy gossip --mesh replicate=2,dp=2": "leave replicate out of --mesh",
    "--reduce-dtype powersgd --strategy zero1": "choose ddp, or another format",
    "--reduce-dtype signs --strategy diloco": "choose ddp, or another format",
    "--reduce-dtype dgc": "add --optimizer sgd --set optimizer.momentum=0 --clip 0",
    "--reduce-dtype powersgd --set messages.density=0.1": "goes with --reduce-dtype top_k or dgc",
    "--reduce-dtype top_k --set messages.density=0": "choose a share of the numbers, above 0",
    "--gather-dtype powersgd --strategy fsdp": "sends gradients, not weights",
    "--strategy local_sgd --ranks 2 --verify 1": "with one rank, which --strategy local_sgd",
    "--hybrid-shard 0 --strategy fsdp": "--hybrid-shard must be at least 1, not 0",
    "--hybrid-shard 2 --strategy fsdp --ranks 3": "--hybrid-shard 2 does not divide 3 ranks",
    "--hybrid-shard 3 --strategy fsdp --mesh dp=4": "choose a divisor of 4",
    "--mesh pp=2,dp=2,tp=2 --ranks 4": "for 8 ranks, but there are 4",
    "--mesh pp=2 --strategy dp": "does not go with --mesh pp=2: choose ddp",
    "--mesh pp=2 --strategy fsdp --hybrid-shard 2": "--hybrid-shard 2 does not divide 1 rank",
    "--mesh pp=2 --schedule 2f2b": "invalid choice: '2f2b'",
    "--mesh pp=2 --microbatches 0": "--microbatches must be at least 1, not 0",
    "--mesh pp=2 --microbatches 4 --accumulate 2": "say the same thing of a pipeline",
    "--mesh pp=2 --set parallel.virtual_stages=2": "1f1b has 1 stage on each rank, not 2",
    "--mesh pp=2 --schedule interleaved --microbatches 4": "a model of 3 parts has 1 to 3 stages",
    "--mesh pp=4 --ranks 4": "a model of 3 parts has 1 to 3 stages, not 4",
    "--mesh pp=2 --bucket-mb -1": "--bucket-mb must be a number >= 1e-06, not -1",
    "--mesh tp=2 --schedule gpipe": "--schedule goes with a pipeline: add pp to the mesh",
    "--mesh dp=2 --microbatches 4": "--microbatches goes with a pipeline",
    "--mesh tp=4": "do not divide over 4 ranks: choose tp of 1, 2",
    "--mesh dp=2 --sequence-parallel": "add tp to the mesh, for example --mesh tp=2",
    "--mesh tp=2 --sequence-parallel --context 7": "which does not divide: choose a multiple of 2",
    "--mesh tp=2 --sequence-parallel --data digits": "splits a text's tokens, which",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(words, capsys):
    try:
        status = main(["train", *SMALL, *words.split()])
    except SystemExit as error:                     # argparse's own way out
        status = error.code
    printed = capsys.readouterr()
    assert status == 2
    assert MISTAKES[words] in printed.err
    assert printed.err.count("\n") == 1 and "Traceback" not in printed.err
    assert not printed.out


def test_resumed_is_exactly_uninterrupted(tmp_path):
    words = ["--steps", "8", "--warmup", "2", "--dropout", "0.2"]
    whole = losses(2, parse(*words, "--save-every", "3", "--out", str(tmp_path / "whole")))
    half = tmp_path / "whole" / "checkpoint.previous.npz"       # after 6 steps
    assert json.loads((tmp_path / "whole" / "checkpoint.json").read_text())["step"] == 8
    resumed = losses(2, parse(*words, "--resume", str(half)))
    assert len(whole) == 8 and resumed == whole


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
@pytest.mark.parametrize("data", ["synthetic", "digits"])
@pytest.mark.one_in(2)
def test_any_number_of_ranks_is_one_rank(data, optimizer):
    options = parse("--data", data, "--steps", "4", "--dtype", "float64", "--dropout", "0.1",
                    "--optimizer", optimizer)
    alone = losses(1, options)
    for num_ranks in (2, 3, 7):                     # 7: more ranks than samples in the batch
        np.testing.assert_allclose(losses(num_ranks, options), alone, rtol=1e-10)


def test_resume_refuses_another_model_data_or_optimizer(tmp_path, capsys):
    out = str(tmp_path)
    assert main(["train", *SMALL, "--data", "synthetic", "--steps", "2", "--out", out]) == 0
    for words, said in ((["--width", "32"], "width is 16, not 32"),
                        (["--data", "docs"], "characters that the model does not know"),
                        (["--optimizer", "sgd"], "trained with --optimizer adamw, not sgd"),
                        (["--steps", "2"], "2 steps are done already"),
                        (["--layers", "2"], "num_layers is 1, not 2")):
        given = [*SMALL, "--data", "synthetic", "--steps", "4", "--resume", out, *words]
        capsys.readouterr()
        assert main(["train", *given]) == 2
        assert said in capsys.readouterr().err


def test_resume_remembers_what_is_not_said_again(tmp_path, capsys):
    out = str(tmp_path)
    words = ["--data", "synthetic", "--dtype", "float64", "--seed", "3", "--optimizer", "sgd"]
    assert main(["train", *SMALL, *words, "--steps", "4", "--save-every", "2", "--out", out]) == 0
    whole = json.loads((tmp_path / "checkpoint.json").read_text())
    half = tmp_path / "half"
    half.mkdir()
    (tmp_path / "checkpoint.previous.npz").rename(half / "checkpoint.npz")
    assert main(["train", "--resume", str(half), "--ranks", "2"]) == 0      # and nothing else
    resumed = json.loads((half / "checkpoint.json").read_text())
    assert resumed["config"] == whole["config"] and resumed["step"] == 4
    np.testing.assert_allclose(resumed["losses"], whole["losses"], rtol=1e-12)


@pytest.mark.parametrize("damage", ["model", "state", "step", "config"])
def test_resume_refuses_a_checkpoint_with_something_missing(tmp_path, capsys, damage):
    out = str(tmp_path)
    assert main(["train", *SMALL, "--data", "synthetic", "--steps", "2", "--out", out]) == 0
    saved = files.load(tmp_path)
    entries, name = {"model": (saved.model, "wpe.weight"),
                     "state": (saved.optimizer, "first_moment/wpe.weight")}.get(
                         damage, (saved.description, damage))
    del entries[name]
    files.save(tmp_path, saved)
    capsys.readouterr()
    try:
        status = main(["train", "--resume", out, "--steps", "4"])
    except SystemExit as error:
        status = error.code
    printed = capsys.readouterr().err
    assert status == 2 and printed.count("\n") == 1
    assert {"model": "its optimizer has first_moment/wpe.weight, but its model has no such",
            "state": "needs first_moment/wpe.weight"}.get(
        damage, f"has no {damage}") in printed


def test_a_loss_that_is_no_number_stops_with_the_step(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", *SMALL, "--data", "synthetic", *TO_A_NAN])
    printed = capsys.readouterr().err
    assert ended.value.code == 1
    assert "the loss is" in printed and "at step 1" in printed and "--lr" in printed
    assert printed.count("\n") == 1


def test_everything_is_shown_and_written(pictures, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 50)
    assert main(["train", *SMALL, "--data", str(text), "--steps", "5", "--mesh", "dp=2",
                 "--sample", "17", "--prompt", "the", "--verify", "2",
                 "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "bits per character" in printed and "tokens/s" in printed
    sample = printed.split("a sample")[1].splitlines()[1]
    assert len(sample) == 17
    assert printed.splitlines()[-1].startswith("the same: after 2 steps in float64")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "checkpoint.json", "checkpoint.npz", "loss.png", "memory.png", "timeline.png"]


def test_the_synthetic_language_is_learned():
    options = parse("--data", "synthetic", "--steps", "150", "--lr", "0.02", "--batch", "16")
    best = make_task(options).optimal_loss
    assert best < np.mean(losses(1, options)[-20:]) < best + 0.15


@pytest.mark.parametrize("words", [
    "--mesh pp=2,dp=2,tp=2 --schedule interleaved --set parallel.virtual_stages=2 --microbatches 4 "
    "--sequence-parallel --layers 2 --strategy zero1",
    "--mesh pp=3,dp=2 --schedule zb_h1", "--mesh tp=2,dp=2 --accumulate 2",
    "--mesh pp=2,tp=2 --data digits --hidden 12,11,10"])
@pytest.mark.one_in(2)
def test_any_mesh_is_one_rank(words):
    data = [] if "digits" in words else ["--data", "synthetic"]
    options = parse(*data, "--steps", "3", "--dtype", "float64", "--dropout", "0.1", *words.split())
    num_ranks = num_ranks_of(options)
    plain = [] if "--layers" not in words else ["--layers", "2"]
    where = ["--data", "digits", "--hidden", "12,11,10"] if "digits" in words else data
    alone = losses(1, parse(*where, "--steps", "3", "--dtype", "float64", "--dropout", "0.1",
                            *plain))
    np.testing.assert_allclose(losses(num_ranks, options), alone, rtol=1e-10)


def test_a_mesh_verifies_itself(pictures, capsys, tmp_path):
    words = "--data synthetic --steps 2 --mesh pp=2,dp=2,tp=2 --microbatches 3 --verify 2"
    assert main(["train", *SMALL, *words.split(), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "8 simulated ranks, pp=2,dp=2,tp=2, ddp, 1f1b, 3 microbatches" in printed
    assert "the same: after 2 steps in float64, 8 simulated ranks are" in printed
    assert (tmp_path / "pipeline.png").read_bytes().startswith(b"\x89PNG")
    assert main(["train", *SMALL, "--data", "synthetic", "--resume", str(tmp_path), "--steps", "3",
                 "--mesh", "tp=2"]) == 0        # a checkpoint knows nothing of the mesh
