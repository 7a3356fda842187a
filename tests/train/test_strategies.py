"""Every strategy in the training program: the same run; any other goes on from its checkpoint."""

import json

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main
from minipar.parallel.registry import strategies_with
from minipar.train.config_file import from_tables
from tests.support.cases import ONE_PROCESS
from tests.train.test_train import SMALL, losses, parse

RUN = ["--data", "synthetic", "--steps", "4", "--warmup", "1", "--dropout", "0.2", "--dtype",
       "float64", "--clip", "0.1", "--set", "optimizer.weight_decay=0.5"]


@pytest.mark.parametrize("name", ONE_PROCESS)
@pytest.mark.one_in(3)
def test_every_strategy_is_one_rank(name):
    alone = losses(1, parse(*RUN))
    for words in (["--accumulate", "4"], ["--hybrid-shard", "2"] if name == "fsdp" else
                  ["--bucket-mb", "0.002"] if name in strategies_with("bucket_mb") else []):
        options = parse(*RUN, "--strategy", name, *words)
        np.testing.assert_allclose(losses(4, options), alone, rtol=1e-10)


@pytest.mark.parametrize("first, num_ranks, then, other_num", [
    ("ddp", 2, "fsdp", 3), ("fsdp", 4, "zero2", 1), ("zero1", 3, "zero3", 2),
    ("zero2", 2, "dp", 3), ("zero3", 3, "zero1", 4), ("dp", 3, "ddp", 2)])
@pytest.mark.one_in(3)
def test_another_strategy_on_other_ranks_goes_on(first, num_ranks, then, other_num, tmp_path):
    """With AdamW, so that both of its states, and the number of steps, must come along."""
    whole = losses(1, parse(*RUN))
    begun = losses(num_ranks, parse(*RUN, "--strategy", first, "--save-every", "2", "--out",
                                    str(tmp_path)))
    half = tmp_path / "checkpoint.previous.npz"             # after 2 steps
    assert files.load(half).description["step"] == 2
    resumed = losses(other_num, parse(*RUN, "--strategy", then, "--resume", str(half)))
    np.testing.assert_allclose(begun, whole, rtol=1e-10)
    np.testing.assert_allclose(resumed, whole, rtol=1e-10)


def test_checkpoints_of_all_strategies_are_the_same_file(tmp_path):
    for name in ONE_PROCESS:
        losses(3, parse(*RUN, "--strategy", name, "--out", str(tmp_path / name)))
    expected = files.load(tmp_path / "ddp")
    for name in ONE_PROCESS:
        saved = files.load(tmp_path / name)
        for ours, theirs in ((saved.model, expected.model), (saved.optimizer, expected.optimizer)):
            assert ours.keys() == theirs.keys()
            for key, array in theirs.items():
                np.testing.assert_allclose(ours[key], array, rtol=1e-9, atol=1e-13, err_msg=key)


def test_resume_remembers_the_strategy_but_not_the_ranks(tmp_path, capsys):
    out = str(tmp_path)
    words = [*SMALL, *RUN, "--strategy", "fsdp", "--accumulate", "2", "--hybrid-shard", "2"]
    assert main(["train", *words, "--ranks", "4", "--save-every", "2", "--out", out]) == 0
    whole = json.loads((tmp_path / "checkpoint.json").read_text())
    (tmp_path / "checkpoint.previous.npz").rename(tmp_path / "checkpoint.npz")
    assert main(["train", "--resume", out, "--ranks", "3"]) == 0
    resumed = json.loads((tmp_path / "checkpoint.json").read_text())
    assert resumed["config"] == whole["config"]
    assert resumed["config"]["parallel"] == {"strategy": "fsdp", "accumulate": 2}
    np.testing.assert_allclose(resumed["losses"], whole["losses"], rtol=1e-10)


def test_a_checkpoint_of_the_first_edition_goes_on_as_it_did(tmp_path):
    """It has flat options, and may lack one that says which parameters decay: then all do."""
    words = [*SMALL, *RUN, "--warmup", "0"]
    for name, more in (("all", ["--set", "optimizer.decay_all=true"]), ("some", [])):
        assert main(["train", *words, *more, "--save-every", "2", "--out",
                     str(tmp_path / name)]) == 0
    everything, some = (files.load(tmp_path / name) for name in ("all", "some"))
    older = files.load(tmp_path / "all" / "checkpoint.previous.npz")
    config = from_tables(older.description.pop("config"))
    assert config.pop("decay_all") is True
    older.description["options"] = config | {"kv_heads": None, "gone": 1}
    files.save(tmp_path / "older", older)
    assert main(["train", "--resume", str(tmp_path / "older")]) == 0
    resumed = files.load(tmp_path / "older")
    assert resumed.description["config"] == everything.description["config"]
    bias = "ln_f.bias"
    np.testing.assert_array_equal(resumed.model[bias], everything.model[bias])
    assert (resumed.model[bias] != some.model[bias]).any()
