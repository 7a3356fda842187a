"""Every option of every command: a value that is none is refused in one line."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

import minipar
from minipar.commands.course import exercise as exercises
from minipar.commands.main import COMMANDS, main, make_parser, module_of
from minipar.launcher import UsageError, ranks_option
from minipar.train.check import check_value
from minipar.train.option import REQUIRED, CommandOptions, declared


def parsers_of(parser, words=()):
    """Every parser of a command line, with the words that lead to it."""
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from parsers_of(inner, (*words, name))


def options_with_values() -> list[tuple[str, ...]]:
    """(command, …, option) for every option that takes a value."""
    found = [*parsers_of(make_parser())]
    found += [(("exercise", *words), parser) for words, parser in parsers_of(exercises._parser())]
    return [(*words, name) for words, parser in found for action in parser._actions
            for name in action.option_strings if action.nargs != 0]


def run(capsys, *words) -> tuple[int, str]:
    capsys.readouterr()
    try:
        status = main([*words])
    except SystemExit as stop:
        status = stop.code
    said = capsys.readouterr()
    assert not said.out
    return status, said.err


OPTIONS = options_with_values()
PACKAGE = Path(minipar.__file__).parent


def test_argparse_stays_at_the_edge():
    """All other code gets a configuration, never a Namespace."""
    users = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")
             if "argparse" in path.read_text()}
    assert {name for name in users if not name.startswith("commands/")} == {
        "train/command_line.py", "train/recipes/observed_run.py",
        "school/course/checker/check.py", "school/course/grading/__main__.py"}


def test_it_is_found_from_the_folder_that_holds_a_clone(tmp_path):
    """There a folder is called minipar, which is no package."""
    (tmp_path / "minipar").mkdir()
    done = subprocess.run([sys.executable, "-c", "import minipar; minipar.launch"], cwd=tmp_path,
                          capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_they_are_all_found():
    commands = {words[0] for words in OPTIONS}
    assert {"train", "evaluate", "quantize", "prune", "distill", "study", "collective", "schedule",
            "calibrate", "exercise", "generate", "serve", "replay", "convert",
            "shard", "plan", "simulate", "course", "milestone", "compare",
            "lesson", "puzzle"} == commands
    assert len(OPTIONS) > 100 and ("schedule", "-p") in OPTIONS


@pytest.mark.parametrize("words", OPTIONS, ids=" ".join)
@pytest.mark.one_in(4)
def test_two_dashes_are_no_value(capsys, words):
    *command, option = words
    forms = [f"{option}=--"] if option.startswith("--") else [f"{option}=--", f"{option}--"]
    for form in forms:
        status, said = run(capsys, *command, form)
        assert status == 2 and said.count("\n") == 1 and "Traceback" not in said
        assert f"{option} has the value --, which only ends the options" in said


@pytest.mark.parametrize("words", [("--png",), ("--png", "--"), ("--ranks=",), ("--ranks", "--"),
                                   ("--bytes",), ("--unknown=--",), ("--", "--png=--")])
def test_the_like_is_one_line_too(capsys, words):
    status, said = run(capsys, "collective", "all_reduce", *words)
    assert status == 2 and said.count("\n") == 1 and "Traceback" not in said


def test_what_is_no_option_may_have_dashes(capsys):
    options = make_parser().parse_args(["train", "--prompt", "a=--", "--data=b=--"])
    assert (options.prompt, options.data) == ("a=--", "b=--")
    assert run(capsys, "collective", "nothing")[0] == 2
    with pytest.raises(UsageError, match="--ranks takes a positive whole number, not '--'"):
        ranks_option(["lesson.py", "--ranks=--"])


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_are_values_and_what_options_name_is_there(name):
    options = declared(getattr(module_of(COMMANDS[name]), "Options", CommandOptions))
    for field in options.values():
        if field.default is not REQUIRED:
            check_value(field, field.default)
        for beside in (*field.option.without, *filter(None, [field.option.needs])):
            assert beside.key in options and beside.key != field.key
