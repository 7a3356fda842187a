"""`minipar replay`: JSON of steps and summary, a picture, mistakes in one line."""

import json
from pathlib import Path

import pytest

from minipar.commands.main import main

SCENARIO = Path(__file__).parents[1] / "inference/scenarios/continuous_batching.json"


def test_it_prints_what_was_recorded_also_with_json(capsys):
    recorded = json.loads(SCENARIO.read_text())
    for words in ([], ["--json"], ["--static"]):
        assert main(["replay", str(SCENARIO), *words]) == 0
        found = json.loads(capsys.readouterr().out)
        for key in ("engine", "requests", "steps", "summary"):
            assert found[key] == recorded[key]
        assert found.get("static_batches") == ({"steps": 15} if "--static" in words else None)


@pytest.mark.parametrize("name", [
    "samples_preempted_together", "too_long", pytest.param("trace_40", marks=pytest.mark.slow)])
def test_it_draws_the_blocks(capsys, tmp_path, name):
    path = tmp_path / "pool.png"
    assert main(["replay", str(SCENARIO.with_stem(name)), "--draw", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_title_and_names_are_drawn_as_they_are(capsys, tmp_path):
    path = tmp_path / "scenario.json"
    path.write_text(scenario(("$A_{$", [1], [[2, 3]]), what="costs $1_{, not $2"))
    assert main(["replay", str(path), "--draw", str(tmp_path / "pool.svg")]) == 0
    assert not capsys.readouterr().err
    drawn = (tmp_path / "pool.svg").read_text()
    assert "costs $1_{, not $2" in drawn and "$A_{$" in drawn


def scenario(*requests: tuple[str, list[int], list[list[int]]], **others) -> str:
    return json.dumps({"engine": {"num_blocks": 9, "block_size": 1, "prefix_caching": True},
                       "requests": [{"name": name, "arrival_step": 0, "prompt": prompt,
                                     "outputs": outputs} for name, prompt, outputs in requests],
                       **others})


@pytest.mark.parametrize(("text", "words", "message"), [
    ("{", [], "is no JSON"),
    pytest.param("[" * 100_000, [], "is no JSON: maximum recursion", id="nested"),
    (scenario(what="\ud800"), [], "is no JSON"),
    (scenario(("A", [2**63], [[1]])), [], "tokens being integers of 64 bits"),
    (scenario(("A", [1], [[2], [3]]), ("A.0", [1], [[2]])), [], "same name: A, A.0, A.1, A.0"),
    ("[]", [], 'expected {"engine": {…}, "requests": […]}'),
    ('{"engine": {"num_blocks": 4}, "requests": []}', ["--static"], 'needs "max_requests"'),
    ('{"engine": {"num_blocks": 4}, "requests": []}', ["--draw", "a.png"], "leave out --draw"),
])
def test_mistakes_take_one_line(capsys, tmp_path, text, words, message):
    path = tmp_path / "scenario.json"
    path.write_text(text)
    assert main(["replay", str(path), *words]) == 2
    found = capsys.readouterr()
    assert message in found.err and found.err.count("\n") == 1 and not found.out
    assert main(["replay", str(tmp_path / "none.json")]) == 2
    assert "No such file" in capsys.readouterr().err
