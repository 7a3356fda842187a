"""Checkpoints that older editions wrote are trained on as new ones are."""

from pathlib import Path

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main
from minipar.train.checkpoints.models import read_config_to_resume
from minipar.train.config import OPTIONS

# written by the edition of November 2026 (ZeRO-1 on pp 2 × dp 2), which went on to these losses
KEPT = Path(__file__).with_name("kept")
KEPT_LOSSES = [2.803268313407898, 2.7838123440742493, 2.781222343444824, 2.771073818206787]
GPT_WORDS = "--data synthetic --layers 1 --heads 2 --width 8 --context 8 --batch 2 --steps 2"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folders of a run of two steps, and of the run that goes on from there to four."""
    two, four = (tmp_path_factory.mktemp(name) for name in ("two", "four"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minipar.train.program.draw_pictures", lambda state, world, out: [])
        assert main(["train", *GPT_WORDS.split(), "--out", str(two)]) == 0
        assert resume(two, four) == 0
    return two, four


def resume(folder, out) -> int:
    return main(["train", "--resume", str(folder), "--steps", "4", "--out", str(out)])


def flat_options(folder) -> dict:
    """The configuration of a run by its flags, as the first edition wrote it."""
    config = read_config_to_resume(folder)
    return {key: getattr(getattr(config, field.section), field.name)
            for key, field in OPTIONS.items() if field.option.saved and field.section != "experts"}


@pytest.mark.parametrize("gone", ["left out", "null"])
@pytest.mark.parametrize("has_options", [False, True])
def test_a_run_goes_on_as_a_new_one(written, tmp_path, gone, has_options):
    two, four = written
    saved = files.load(two)
    for name in ("norm", "norm_epsilon", "mlp", "rope", "bias", "head_width", "mlp_width",
                 "experts"):
        del saved.description["model"][name]
        if gone == "null":
            saved.description["model"][name] = None
    if has_options:
        del saved.description["config"]
        saved.description["options"] = flat_options(two)
    files.save(tmp_path, saved)
    assert resume(tmp_path, tmp_path) == 0
    found, whole = files.load(tmp_path), files.load(four)
    assert found.description["losses"] == whole.description["losses"]
    assert all(np.array_equal(found.model[name], array) for name, array in whole.model.items())


@pytest.mark.parametrize("words", ["", "--mesh dp=2,tp=2 --strategy fsdp", "--mesh pp=2"])
def test_a_kept_checkpoint_goes_on_as_it_did_then(tmp_path, words):
    """Parameters, moments, dropout masks and data are found by their names, on any layout."""
    assert main(["train", "--resume", str(KEPT), "--steps", "4", "--out", str(tmp_path),
                 *words.split()]) == 0
    losses = files.load(tmp_path).description["losses"]
    np.testing.assert_allclose(losses, KEPT_LOSSES, rtol=1e-6)
