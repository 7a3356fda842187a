"""--precision in the training program: refusals, strategies, and a run that goes on exactly."""

import json
from functools import cache

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.comm import Cluster
from minipar.commands.main import main
from minipar.launcher import UsageError
from minipar.mixed_precision import LossScaler
from minipar.parallel.wire_formats.quantized.block_codec import BlockCodec
from minipar.parallel.wire_formats.quantized.quantized_collectives import QuantizedWire
from minipar.train import loop, start_run, train_steps
from minipar.train.loop import take_step
from minipar.train.setup import precision as precision_options
from minipar.train.tasks import make_task
from tests.train.test_train import SMALL, losses, parse

RUN = ["--data", "synthetic", "--steps", "6", "--warmup", "1", "--dropout", "0.2"]
MISTAKES = {
    "--precision fp16 --dtype float64": "which does not go with --dtype float64",
    "--reduce-dtype bf16 --dtype float64": "which does not go with --dtype float64",
    "--reduce-dtype bf16 --strategy dp": "--strategy dp sums gradients in no other format: leave",
    "--reduce-dtype bf16 --strategy terapipe --mesh pp=2": "terapipe sums gradients in no other",
    "--reduce-dtype int8 --dtype float64": "which does not go with --dtype float64",
    "--reduce-dtype int8 --strategy dp": "leave --reduce-dtype out, or choose ddp",
    "--reduce-dtype int5": "invalid choice",
    "--gather-dtype int8": "--gather-dtype needs --strategy zero3 or fsdp, not ddp",
    "--gather-dtype bf16 --strategy fsdp --dtype float64": "which does not go with --dtype float64",
    "--loss-scale 8": "add --precision fp16",
    "--precision fp16 --loss-scale much": "for example 1024, not 'much'",
    "--precision fp16 --loss-scale -1": "a number from 1e-30 to 1e30",
    "--precision bf16 --loss-scale 1e-300": "a number from 1e-30 to 1e30",
    "--precision int3": "invalid choice",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_are_one_line(words, capsys):
    assert exits(["train", *words.split()]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and MISTAKES[words] in said[0]


def exits(argv):
    try:
        return main(argv)
    except SystemExit as error:
        return error.code


@pytest.mark.parametrize("precision, bound", [("bf16", 2e-2), ("fp16", 2e-3), ("fp8", 5e-2)])
@pytest.mark.parametrize("words", ["", "--strategy fsdp", "--mesh pp=2,dp=1,tp=2",
                                   "--strategy zero2 --reduce-dtype bf16"])
@pytest.mark.one_in(4)
def test_losses_are_about_those_of_float32(precision, bound, words):
    wide, narrow = losses_of(words), losses_of(f"{words} --precision {precision}")
    assert narrow != wide
    np.testing.assert_allclose(narrow, wide, rtol=bound)


@cache
def losses_of(words):
    return losses(4 if "mesh" in words else 2, parse(*RUN, *words.split()))


@pytest.mark.parametrize("words, bound", [
    ("--reduce-dtype int8", 1e-2), ("--reduce-dtype int4 --strategy zero1", 5e-2),
    ("--reduce-dtype int8 --gather-dtype int8 --strategy fsdp", 1e-2),
    pytest.param("--gather-dtype bf16 --strategy fsdp", 1e-2, marks=pytest.mark.slow),
    pytest.param("--reduce-dtype int8 --precision fp16 --strategy zero2", 1e-2,
                 marks=pytest.mark.slow)])
@pytest.mark.one_in(2)
def test_losses_with_integers_on_the_way_are_about_those_without(words, bound, capsys):
    wide = losses(3, parse(*RUN))
    found = losses(3, parse(*RUN, *words.split()))
    assert found != wide
    np.testing.assert_allclose(found, wide, rtol=bound)
    assert main(["train", *SMALL, *RUN, *words.split(), "--ranks", "2"]) == 0
    said = capsys.readouterr().out
    assert ("gradients sent as int" in said) == ("int" in words.split()[1])
    assert ("weights gathered as" in said) == ("--gather-dtype" in words)


@pytest.mark.slow
def test_a_classifier_learns_as_well_from_integers():
    """Its last loss within 1 % with int8; with int4, and with 2 bits, feedback helps."""
    words = ["--data", "digits", "--steps", "200", "--batch", "128", "--optimizer", "sgd", "--lr",
             "0.05", "--seed", "1"]
    found = {}
    for bits in (None, 8, 4, 2):
        for feedback in (True, False):
            def body(comm, bits=bits, feedback=feedback):
                options = parse(*words)
                run = start_run(comm, options, make_task(options))
                if bits is not None:
                    run.strategy.wire = QuantizedWire(BlockCodec(bits), feedback)
                train_steps(comm, run)
                return np.mean(run.losses[-20:])
            found[bits, feedback] = Cluster(4).run(body)[0][0] if bits or feedback else None
    exact = found[None, True]
    assert found[8, True] == pytest.approx(exact, rel=0.01)
    assert found[4, True] < 1.03 * exact < found[4, False]
    assert 1.5 * exact < found[2, True] < 0.95 * found[2, False]


def test_a_run_that_is_resumed_goes_on_exactly(tmp_path, capsys):
    """With a scale that overflows at first: skipped steps are no steps of the optimizer."""
    words = [*SMALL, *RUN, "--precision", "fp16", "--strategy", "zero1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision_options, "LossScaler", lambda: LossScaler(2.0**20, interval=3))
        assert main(["train", *words, "--ranks", "2", "--save-every", "3", "--out",
                     str(tmp_path)]) == 0
        whole = json.loads((tmp_path / "checkpoint.json").read_text())
        half = tmp_path / "checkpoint.previous.npz"
        at_half = files.load(half).description
        assert 0 < at_half["updates"] < 3 and at_half["scaler"]["scale"] < 2.0**20
        half.rename(tmp_path / "checkpoint.npz")
        assert main(["train", "--resume", str(tmp_path), "--ranks", "2"]) == 0
    resumed = json.loads((tmp_path / "checkpoint.json").read_text())
    assert resumed["config"]["precision"]["compute"] == "fp16"
    for key in ("losses", "scaler", "updates"):
        assert resumed[key] == whole[key]
    assert "fp16 with float32 masters" in capsys.readouterr().out


def test_the_summary_says_scale_and_skipped_steps(capsys):
    assert main(["train", *SMALL, *RUN, "--precision", "fp16", "--loss-scale", "1e9"]) == 0
    said = capsys.readouterr().out
    assert "loss scale 1e+09, 6 steps skipped" in said


def overflowing(comm, words, num_steps):
    """Steps of a run whose forward overflows in all but the first: (losses, the run)."""
    options = parse(*RUN[:2], "--steps", "40", *words.split())
    run = start_run(comm, options, make_task(options))
    found = [take_step(run, 0)]
    sound = [slab.data.copy() for slab in run.strategy.slabs]
    for slab in run.strategy.slabs:
        slab.data *= 1e9
    found += [take_step(run, 1 + i) for i in range(num_steps)]
    for slab, data in zip(run.strategy.slabs, sound):
        np.testing.assert_array_equal(slab.data, data * np.float32(1e9))     # no step was taken
        slab.data[...] = data
    return [*found, take_step(run, 1 + num_steps)], run


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_a_loss_that_is_not_finite_is_a_step_to_skip(strategy):
    """The scaler is told, as of gradients that overflow; the run goes on, on all ranks alike."""
    words = f"--precision fp16 --strategy {strategy}"
    with np.errstate(all="ignore"):
        results = Cluster(2).run(lambda comm: overflowing(comm, words, 3))[0]
    for found, run in results:
        assert np.isfinite(found).tolist() == [True, False, False, False, True]
        assert (run.scaler.num_skipped, run.scaler.scale) == (3, 2.0**13)
        assert run.optimizer.num_steps == 2


@pytest.mark.parametrize("words, num_skipped, scale", [
    ("--precision fp16", 16, "1"), ("--precision fp16 --loss-scale 64", 0, "64")])
def test_a_run_ends_where_no_smaller_scale_helps(words, num_skipped, scale):
    with np.errstate(all="ignore"):
        Cluster(1).run(lambda comm: overflowing(comm, words, num_skipped))
        with pytest.raises(UsageError, match=f"nan at step {num_skipped + 1} with loss scale "
                                             f"{scale}: lower --lr"):
            Cluster(1).run(lambda comm: overflowing(comm, words, num_skipped + 1))


def test_a_run_ends_whose_gradients_always_overflow(capsys):
    """The loss is finite, but no step is ever taken: ten in a row end the run, on all ranks."""
    words = [*SMALL, *RUN, "--precision", "fp16", "--loss-scale", "1e9", "--steps", "12"]
    assert exits(["train", *words, "--ranks", "2"]) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    assert said[0].endswith("10 steps in a row overflowed, the last at step 9 with loss scale "
                            "1e+09: choose a smaller --loss-scale")


def test_a_run_ends_whose_gradients_overflow_at_every_dynamic_scale(monkeypatch):
    """From 2¹⁶ to 1 in 16 steps that are skipped; then ten more."""
    monkeypatch.setattr(loop, "unscale", lambda strategy, scale: False)

    def body(comm):
        options = parse(*RUN[:2], "--steps", "40", "--precision", "fp16")
        run = start_run(comm, options, make_task(options))
        for step in range(25):
            take_step(run, step)
        with pytest.raises(UsageError, match="at step 25 with loss scale 0.00195312: lower --lr"):
            take_step(run, 25)
        assert run.optimizer.num_steps == 0

    Cluster(1).run(body)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
@pytest.mark.one_in(2)
def test_a_score_says_that_it_is_float32s(precision, tmp_path, capsys):
    words = ["--precision", precision, "--out", str(tmp_path)]
    assert main(["train", *SMALL, *RUN, *words]) == 0
    note = f"(computed in float32 from the float32 masters, not in {precision})"
    assert (note in capsys.readouterr().out) == (precision != "fp32")
    assert main(["evaluate", str(tmp_path)]) == 0
    assert (note in capsys.readouterr().out) == (precision != "fp32")


def test_a_scale_that_would_not_work_is_refused_before_the_ranks_start():
    with pytest.raises(UsageError, match="a number from 1e-30 to 1e30"):
        parse("--precision", "fp16", "--loss-scale", "nan")
