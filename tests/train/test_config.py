"""The configuration: one value from flags, a file, a checkpoint or Python, and what refuses it."""

import json
import subprocess
import sys
import tomllib
from dataclasses import fields

import pytest

from minipar import checkpoint_file as files
from minipar.commands.main import main, make_parser
from minipar.launcher import UsageError
from minipar.train import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RunConfig,
    TrainConfig,
    start_run,
    train,
)
from minipar.train.check import checked
from minipar.train.command_line import parse_config
from minipar.train.config import OPTIONS
from minipar.train.config_file import from_tables, read_config, to_tables, to_toml

DIGITS = ["--data", "digits", "--hidden", "8", "--batch", "4"]


def parse(*words) -> TrainConfig:
    return parse_config(make_parser("train").parse_args(["train", *map(str, words)]))


def test_every_field_has_a_flag_a_key_and_a_default_that_passes():
    assert parse() == TrainConfig() and checked(TrainConfig()).optimizer.lr == 3e-3
    named = {(section.name, field.name) for section in fields(TrainConfig)
             for field in fields(section.type)} - {("data", "recorded")}
    assert named == {(field.section, field.name) for field in OPTIONS.values()}
    assert parse("--lr", 1, "--set", "model.kv_heads=2", "--set", "model.untied=true", "--data",
                 "x") == TrainConfig().updated(
        lr=1.0, kv_heads=2, untied=True, data="x")


def another(field):
    """A value that is not the default."""
    if field.option.choices:
        return field.option.choices[-1]
    return {bool: True, int: 3, float: 0.25}.get(field.kind) or field.kind('a "b"\\\n☃\x7f')


def test_a_file_has_every_option(tmp_path):
    path = tmp_path / "run.toml"
    for config in (TrainConfig(), TrainConfig().updated(
            **{key: another(field) for key, field in OPTIONS.items()})):
        path.write_text(to_toml(config), encoding="utf-8")
        assert TrainConfig().updated(**read_config(path)) == config
        assert from_tables(json.loads(json.dumps(to_tables(config)))) == {
            key: config.get(key) for key, field in OPTIONS.items()
            if field.option.saved and config.get(key) is not None}


def test_it_is_printed_as_toml_and_flags_win_over_the_file(tmp_path, capsys):
    path = tmp_path / "run.toml"
    assert main(["train", *DIGITS, "--optimizer", "sgd", "--out", str(tmp_path / "none"),
                 "--print-config"]) == 0
    text = capsys.readouterr().out
    assert "# with diloco or delayed: steps for which" in text
    assert tomllib.loads(text)["optimizer"]["name"] == "sgd" and not (tmp_path / "none").exists()
    assert main(["train", "--print-config", "--json"]) == 2 and not capsys.readouterr().out
    path.write_text(text)
    assert parse("--config", path) == parse(*DIGITS, "--optimizer", "sgd", "--out",
                                            tmp_path / "none")
    config = parse("--config", path, "--optimizer", "adam", "--lr", 0.5)
    assert (config.optimizer.name, config.optimizer.lr, config.data.batch) == ("adam", 0.5, 4)


MISTAKES = {
    "[optimiser]\nlr = 1": "unknown section [optimiser]: did you mean 'optimizer'?",
    "[optimizer]\nlearning = 1": "unknown key 'learning' in [optimizer]: choose from name, lr",
    "[model]\nwidht = 1": "unknown key 'widht' in [model]: did you mean 'width'?",
    "[data]\ndata = 'docs'": "unknown key 'data' in [data]: did you mean 'source'?",
    "[model]\nlayers = 'four'": 'layers in [model] takes a whole number, not "four"',
    "[model]\nlayers = 2.0": "layers in [model] takes a whole number, not 2.0",
    "[model]\nuntied = 1": "untied in [model] takes true or false, not 1",
    "[optimizer]\nlr = true": "lr in [optimizer] takes a number, not true",
    "[run]\nout = 3": "out in [run] takes a text, not 3",
    "model = 3": "[model] is 3, not a table of names and values",
    "[model": "is no TOML file",
    "[run]\nsteps = 0": "--steps must be at least 1, not 0",
    "[optimizer]\nlr = nan": "--lr must be a number >= 0, not nan",
    "[parallel]\nstrategy = 'zero4'": "--strategy: invalid choice: 'zero4' (choose from ",
    '[data]\nsource = "\\ud800"': "is no TOML file",
    "[parallel]\nmesh = 'xp=2'": "no axis 'xp'",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_a_file_is_one_line(tmp_path, capsys, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert main(["train", "--config", str(path)]) == 2
    printed = capsys.readouterr()
    assert MISTAKES[text] in printed.err and printed.err.count("\n") == 1 and not printed.out


@pytest.mark.parametrize("name, says", [("none.toml", "there is no such file: minipar train --"),
                                        (".", "is no TOML file"), ("binary", "is no TOML file")])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, capsys, name, says):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert main(["train", "--config", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1


def test_resume_is_before_the_file_and_the_file_before_flags(tmp_path):
    words = [*DIGITS, "--steps", "3", "--optimizer", "sgd", "--dropout", "0.25", "--clip", "2"]
    assert main(["train", *words, "--out", str(tmp_path)]) == 0
    path = tmp_path / "more.toml"
    path.write_text("[run]\nsteps = 9\n[optimizer]\nclip = 3.0\n")
    config = parse("--resume", tmp_path, "--config", path, "--steps", 5)
    assert config.data.source == "digits" and config.model.dropout == 0.25
    assert (config.optimizer.lr, config.optimizer.clip, config.run.steps) == (0.1, 3.0, 5)
    assert config.run.out is None and checked(config).run.out == tmp_path
    entry = files.load_description(tmp_path)["config"]
    assert "out" not in entry["run"] and entry["run"]["steps"] == 3
    assert {"mesh", "hybrid_shard"}.isdisjoint(entry["parallel"])


@pytest.mark.parametrize("config, says", [
    (TrainConfig(run=RunConfig(steps=0)), "--steps must be at least 1, not 0"),
    (TrainConfig(run=RunConfig(steps="3")), "--steps takes int, not '3'"),
    (TrainConfig(model=ModelConfig(untied=1)), "--set model.untied takes true or false, not 1"),
    (TrainConfig(optimizer=OptimizerConfig("rmsprop")), "--optimizer: invalid choice: 'rmsprop'"),
    (TrainConfig(parallel=ParallelConfig("ddp", hybrid_shard=2)),
     "needs --strategy zero3 or fsdp")])
def test_a_mistake_in_python_is_the_same_sentence(config, says):
    with pytest.raises(UsageError) as refused:
        train(config)
    assert says in str(refused.value)


def test_a_program_in_python(tmp_path):
    """Without a word of a command line; on the console, nothing."""
    config = TrainConfig(model=ModelConfig(hidden="8"), data=DataConfig("digits", batch=8),
                         parallel=ParallelConfig("zero1"),
                         run=RunConfig(steps=4, ranks=2, out=tmp_path, verify=2))
    result = train(config)
    assert len(result.losses) == 4 and result.comparison.distance < 1e-10
    assert 0 <= result.score.accuracy <= 1 and result.model.num_parameters() == 64 * 8 + 8 + 90
    assert tmp_path / "checkpoint.npz" in result.files


def test_a_run_starts_only_from_a_configuration():
    assert start_run.__annotations__["config"] is TrainConfig


@pytest.mark.parametrize("module, most", [("config", 15), ("loop", 120)])
def test_settings_and_loop_import_few_files(module, most):
    """Of minipar, `__init__` too: settings are names, and the loop is given what it works with."""
    code = (f"import sys, minipar.train.{module};"
            "print(sum(name.split('.')[0] == 'minipar' for name in sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= most


def test_the_options_that_are_used_most_are_flags():
    flags = [field for field in OPTIONS.values() if field.option.is_flag]
    assert len(flags) + len(["--config", "--set", "--print-config"]) <= 45


def test_the_help_names_the_strategies_that_take_an_option_once(capsys):
    with pytest.raises(SystemExit):
        make_parser().parse_args(["train", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "--every K with local_sgd, diloco or elastic: exchange the parameters" in said
    assert "with zero3 or fsdp: shard over N" in said


def test_a_setting_has_a_name_and_a_value(capsys):
    assert parse("--set", "model.rope=10000", "--set", "experts.top_k=1") == TrainConfig().updated(
        rope="10000", top_k=1)
    for words, said in {
            "--set model.norm": "--set model.norm: expected SECTION.NAME=VALUE",
            "--set model.nrm=rms": "unknown key 'nrm' in [model]: did you mean 'norm'?",
            "--set modl.norm=rms": "unknown section [modl]: did you mean 'model'?",
            "--set experts.top_k=two": "top_k in [experts] takes a whole number, not \"two\"",
            "--set model.bias=no": "bias in [model] takes true or false, not \"no\"",
            "--norm rms": "--norm is no flag: say --set model.norm=VALUE, or give it in the file",
            "--no-bias": "--no-bias is no flag: say --set model.bias=VALUE"}.items():
        with pytest.raises((UsageError, SystemExit)) as caught:
            parse(*words.split())
        assert said in f"{caught.value}{capsys.readouterr().err}"
