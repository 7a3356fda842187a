"""Sizes that no machine has: refused at once, in one sentence, before anything is made."""

import json

import numpy as np
import pytest

from minipar.commands.main import main
from minipar.data import CharacterVocabulary
from minipar.inference.scheduling.scripted_requests import MOST
from minipar.nn import GPT, GPTConfig
from minipar.train import save_model

HUGE = [2**63, 2**63 - 1, 10**12, 10**9, 10**26]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    model = GPT(GPTConfig(10, 40, num_layers=1, num_heads=2, width=8)).initialize(3, np.float64)
    save_model(folder, model, "docs", CharacterVocabulary.from_text("abcdefgh \n"))
    return folder


def refusal(capsys, *words) -> str:
    """The one line with which the command line `words` is refused."""
    try:
        status = main([str(word) for word in words])
    except SystemExit as end:
        status = end.code
    captured = capsys.readouterr()
    assert status == 2 and captured.err.count("\n") == 1 and not captured.out
    return captured.err


@pytest.mark.parametrize("size", HUGE)
def test_commands_refuse_sizes_at_once(checkpoint, capsys, size):
    generate = ["generate", checkpoint, "--prompt", "ab", "--max-tokens", 3]
    for option in ("--blocks", "--block-size"):
        message = f"{option} must be at most {MOST:,}, not {size:,}"
        assert message in refusal(capsys, *generate, option, size)
        assert message in refusal(capsys, "serve", checkpoint, "--port", 0, option, size)
    assert "--samples must be at most 65,536" in refusal(capsys, *generate, "--samples", size)
    assert "choose at most 4,096" in refusal(capsys, *generate, "--ranks", size)
    assert "choose at most 4,096" in refusal(capsys, *generate, "--mesh", f"dp={size}")
    assert "lower max_tokens" in refusal(capsys, *generate, "--max-tokens", size)
    for words in (["train", "--steps", 1], ["shard", "gpt", "--mesh", "dp=2"]):
        assert "--layers must be at most 10,000" in refusal(capsys, *words, "--layers", size)
    assert "--experts must be at most" in refusal(capsys, "train", "--experts", size)


def test_a_cache_that_no_memory_holds_is_refused(checkpoint, capsys):
    for command in ("generate", "serve"):
        error = refusal(capsys, command, checkpoint, "--blocks", MOST, "--block-size", MOST)
        assert f"--blocks {MOST} of --block-size {MOST} take" in error


@pytest.mark.parametrize("size", [*HUGE, 10**400, -1, 0, 1.5, float("nan"), True, "4"])
def test_replay_refuses_sizes_at_once(tmp_path, capsys, size):
    request = {"name": "A", "arrival_step": 0, "prompt": [1, 2], "outputs": [[7]]}
    scripts = [{"engine": {"num_blocks": 8, key: size}, "requests": [request]}
               for key in ("num_blocks", "block_size")]
    for script in scripts:
        path = tmp_path / "script.json"
        path.write_text(json.dumps(script))
        refusal(capsys, "replay", path)
