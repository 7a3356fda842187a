"""A training that is resumed with another batch still takes each sample once an epoch."""

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main
from minipar.data import digits
from minipar.nn import MLP
from minipar.train import save_model, train
from minipar.train.checkpoints.schema import config_of

ALL_ROWS = [row.tobytes() for row in digits().train_x.astype(np.float32)]
MLP_ON_DIGITS = ["train", "--data", "digits", "--hidden", "4"]


@pytest.fixture
def seen(monkeypatch):
    """The rows that were trained on, in their order."""
    rows, loss = [], MLP.loss

    def noting(model, x, *others):
        rows.extend(row.tobytes() for row in np.asarray(x))
        return loss(model, x, *others)
    monkeypatch.setattr(MLP, "loss", noting)
    return rows


def go(*words):
    return main([str(word) for word in words])


def check_epochs(seen):
    """All whole epochs have each sample once."""
    epochs = [seen[i:i + len(ALL_ROWS)] for i in range(0, len(seen), len(ALL_ROWS))]
    for epoch in epochs:
        assert len({*epoch}) == len(epoch)
    assert set(epochs[0]) == set(ALL_ROWS)


@pytest.mark.parametrize("options", [[], ["--ranks", "2"], ["--accumulate", "3"]])
@pytest.mark.parametrize("sizes", [(60, 120), (120, 50, 400), (400, 1000, 1000)])
@pytest.mark.one_in(2)
def test_each_sample_once(tmp_path, seen, sizes, options):
    steps = 0
    for batch in sizes:
        steps += 4 if batch != sizes[-1] else -(-2 * len(ALL_ROWS) // batch)
        resumed = ["--resume", tmp_path, *options] if seen else ["--out", tmp_path]
        command = MLP_ON_DIGITS if not seen else ["train"]
        assert go(*command, "--batch", batch, "--steps", steps, *resumed) == 0
    if not options:                     # ranks call in any order
        check_epochs(seen)
    assert set(seen) == set(ALL_ROWS)
    assert max(map(seen.count, ALL_ROWS[:200])) <= -(-len(seen) // len(ALL_ROWS))


def test_from_python_and_with_an_older_checkpoint(tmp_path, seen):
    """A checkpoint that does not say how many samples were used: all steps had its batch."""
    assert go(*MLP_ON_DIGITS, "--batch", 60, "--steps", 4, "--out", tmp_path) == 0
    saved = files.load(tmp_path)
    assert saved.description.pop("samples") == 240
    files.save(tmp_path, saved)
    train(config_of(saved.description, batch=120, steps=14, resume=tmp_path))
    check_epochs(seen)
    assert len(seen) == len(ALL_ROWS)


@pytest.mark.parametrize("command", ["prune {0} --amount 0.5 --steps 4 --out {1}",
                                     "prune {0} --method structured --amount 0.3 --steps 4 "
                                     "--out {1}", "train --resume {0} --steps 14 --out {1}"])
def test_other_commands_go_on_too(tmp_path, seen, command):
    """The second run is the third's past, too."""
    one, two = tmp_path / "one", tmp_path / "two"
    assert go(*MLP_ON_DIGITS, "--batch", 60, "--steps", 4, "--out", one) == 0
    assert go("train", "--resume", one, "--steps", 6, "--batch", 100) == 0
    assert go(*command.format(one, two).split()) == 0
    steps = files.load_description(two)["step"]
    assert files.load_description(two)["samples"] == 440 + 100 * (steps - 6)
    assert go("train", "--resume", two, "--steps", 40, "--batch", 90) == 0
    check_epochs(seen)


def test_a_resumed_distillation_with_another_batch(tmp_path, seen):
    teacher, out = tmp_path / "teacher", tmp_path / "student"
    save_model(teacher, MLP([64, 5, 10]).initialize(), "digits")
    assert go("distill", teacher, "--out", out, "--steps", 4, "--batch", 60) == 0
    assert go("distill", "--resume", out, "--steps", 9, "--batch", 100) == 0
    assert go("distill", "--resume", out, "--steps", 11, "--batch", 50, "--teacher-ranks", 1,
              "--ranks", 3) == 0
    assert files.load_description(out)["samples"] == 240 + 500 + 100


def test_another_seed_begins_with_an_epoch(tmp_path, capsys, seen):
    assert go(*MLP_ON_DIGITS, "--batch", 400, "--steps", 3, "--out", tmp_path) == 0
    assert go("train", "--resume", tmp_path, "--steps", 4, "--seed", 1) == 2
    assert "--seed 1 would begin another order of samples within an epoch" in \
        capsys.readouterr().err
    assert go("train", "--resume", tmp_path, "--steps", 4) == 0
    assert go("train", "--resume", tmp_path, "--steps", 8, "--seed", 1) == 0
    check_epochs(seen)


def test_a_checkpoint_of_no_step_takes_any_batch(tmp_path, seen):
    save_model(tmp_path, MLP([64, 4, 10]).initialize(), "digits")
    assert go("train", "--resume", tmp_path, "--steps", 3, "--batch", 500, "--seed", 3) == 0
    check_epochs(seen)
