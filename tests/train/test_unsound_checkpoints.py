"""A model with NaN or infinity is refused where it can only give NaN; the sentence names it."""

import numpy as np
import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main
from minipar.nn import GPT, MLP, GPTConfig
from minipar.train import save_model

TRAINING = ("train --resume {0} --steps 3", "train --resume {0} --steps 3 --precision fp16",
            "prune {0} --amount 0.5 --out {1}", "distill {0} --steps 2 --out {1}",
            "prune {0} --method 2:4 --out {1}", "quantize {0} --out {1}")
WRITING = ("generate {0} --prompt A", "generate {0} --prompt A --temperature 0",
           "generate {2} --prompt A --draft {0}", "evaluate {0} --sample 3")


def run(*words) -> int:
    try:
        return main([str(word) for word in words])
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind, command", [("gpt", command) for command in (*TRAINING, *WRITING)]
                         + [("mlp", command) for command in TRAINING])
@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")       # infinity less infinity
def test_weights(tmp_path, capsys, kind, command, bad):
    made, out, sound = (tmp_path / name for name in ("made", "out", "sound"))
    model = GPT(GPTConfig(16, 8, 1, 2, 8)) if kind == "gpt" else MLP([64, 8, 10])
    save_model(sound, model.initialize(0), data := "synthetic" if kind == "gpt" else "digits")
    name, weight = list(model.named_parameters())[-2]
    weight.data[..., 1] = bad
    save_model(made, model, data)
    assert run(*command.format(made, out, sound).split()) == 2
    assert f"made: {name} has NaN or infinity: go back to" in (said := capsys.readouterr().err)
    assert "Traceback" not in said and "--lr" not in said
    assert main(["evaluate", str(made)]) == 0           # tells what it is
    assert not out.exists() or not any(out.iterdir())


def test_states_of_the_optimizer(tmp_path, capsys):
    words = ["train", "--data", "digits", "--hidden", "4", "--steps", "2", "--out", str(tmp_path)]
    assert main(words) == 0
    saved = files.load(tmp_path)
    name = next(name for name, array in saved.optimizer.items() if array.dtype.kind == "f")
    saved.optimizer[name].flat[0] = np.nan
    files.save(tmp_path, saved)
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path), "--steps", "4"]) == 2
    assert f"{name} has NaN or infinity: go back to" in capsys.readouterr().err


def test_states_of_a_parameter_that_the_model_has_not(tmp_path, capsys):
    words = ["train", "--data", "digits", "--hidden", "4", "--steps", "2", "--out", str(tmp_path)]
    assert main(words) == 0
    saved = files.load(tmp_path)
    saved.optimizer["first_moment/4.weight"] = np.zeros((4, 10))
    files.save(tmp_path, saved)
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path), "--steps", "4"]) == 2
    assert "its optimizer has first_moment/4.weight, but its model" in capsys.readouterr().err
