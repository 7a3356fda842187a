"""The page on inference: its program runs, and its replay is what the scheduler does."""

import json
import re
from pathlib import Path

from minipar.inference.scheduling.scripted_requests import play, read_scenario

PAGE = (Path(__file__).parents[2] / "docs" / "pages" / "inference.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_program_streams_its_tokens(capsys):
    (program,) = blocks("python")
    names: dict = {}
    exec(program, names)
    tokens = capsys.readouterr().out.split()
    assert len(tokens) == 20
    assert [int(token) for token in tokens] == names["first"].answers[0].tokens
    assert names["other"].answers[0].tokens, "the other request ran in the same steps"


def test_the_steps_shown_are_those_of_the_scenario():
    (scenario,) = blocks("json")
    steps = play(read_scenario(json.loads(scenario)))["steps"]
    shown = [json.loads(line.strip().rstrip(","))
             for line in PAGE.splitlines() if line.startswith('  {"step"')]
    assert len(steps) == 8 and len(shown) == 2
    assert all(json.loads(json.dumps(steps[each["step"]])) == each for each in shown)
