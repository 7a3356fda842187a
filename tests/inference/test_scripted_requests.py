"""Scripted requests: every step is as the recorded scenarios say, whatever the rules of the engine.

The scenarios were made by another implementation of the same ten rules, whose block manager agrees
with a public engine's.
"""

import json
from pathlib import Path

import pytest

from minipar.inference.scheduling.scripted_requests import play, read_scenario

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.json"))
RUNS = {"name": "A", "arrival_step": 0, "prompt": [1, 2, 3], "outputs": [[7, 8]]}


def scenario(engine: dict, *requests: dict):
    return play(read_scenario({"engine": {"num_blocks": 4, "block_size": 2, **engine},
                               "requests": list(requests)}))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_step_is_as_recorded(path):
    document = json.loads(path.read_text())
    found = play(read_scenario(document))
    assert json.loads(json.dumps(found["steps"])) == document["steps"]
    assert found["summary"] == document["summary"]
    assert found.get("refused") == document.get("refused")


def test_steps_without_any_request_are_not_listed():
    late = {**RUNS, "arrival_step": 1_000_000_000}
    assert [step["step"] for step in scenario({}, late)["steps"]] == [10**9, 10**9 + 1]


def test_an_answer_that_ends_early_gives_its_blocks_back_at_once():
    found = scenario({"num_blocks": 9}, {**RUNS, "outputs": [[7], [7, 8, 9, 10]]})
    tables = [list(step["tables"]) for step in found["steps"]]
    assert tables == [["A.0", "A.1"], ["A.1"], ["A.1"], ["A.1"]]
    assert "finished" not in found["steps"][0] and found["steps"][-1]["finished"] == ["A"]
    assert sorted(found["summary"]["free_queue_at_end"]) == list(range(9))


@pytest.mark.parametrize("lengths", [[1, 1, 1], [3], [5, 5], [1, 6], [2, 1, 9], [4, 4, 7, 2, 1]])
@pytest.mark.parametrize("num_prompt", [1, 2, 3, 4, 5])
def test_a_request_is_refused_only_if_it_would_use_more_blocks_than_there_are(num_prompt, lengths):
    request = {**RUNS, "prompt": [1] * num_prompt, "outputs": [[7] * each for each in lengths]}
    peak = scenario({"num_blocks": 99}, request)["summary"]["peak_blocks"]
    assert "refused" not in scenario({"num_blocks": peak}, request)
    if peak > 1:
        refused = scenario({"num_blocks": peak - 1}, request)["refused"]
        assert refused == [{"refused": "A", "needs_blocks": peak, "has_blocks": peak - 1}]


def test_answers_of_one_token_share_all_blocks_and_never_compute_together():
    found = scenario({"num_blocks": 2, "token_budget": 2}, {**RUNS, "outputs": [[7]] * 9})
    assert "refused" not in found and found["summary"]["peak_blocks"] == 2


def test_swapped_requests_come_back_in_the_order_of_their_admission():
    requests = [{**RUNS, "name": name, "outputs": [[1] * count]}
                for name, count in (("A", 6), ("B", 4), ("C", 4))]
    steps = scenario({"num_blocks": 6, "preempt_by": "swap"}, *requests)["steps"]
    assert [name for step in steps for name in step.get("preempted", [])] == ["C"]
    assert [name for step in steps for name in step.get("finished", [])] == ["B", "A", "C"]


@pytest.mark.parametrize(("policy", "steps"), [("token_budget", 4), ("prompts_first", 5),
                                               ("static", 7)])
def test_policies_take_their_number_of_steps(policy, steps):
    requests = [{**RUNS, "name": name, "arrival_step": arrival, "outputs": [[1] * count]}
                for name, arrival, count in (("A", 0, 4), ("B", 1, 3))]
    found = scenario({"num_blocks": 20, "policy": policy}, *requests)
    assert found["summary"]["steps"] == steps
    # a step of prompts_first holds prompts or single tokens, never both
    mixed = any({entry[2] > 1 for entry in step["scheduled"]} == {True, False}
                for step in found["steps"])
    assert mixed == (policy == "token_budget")


@pytest.mark.parametrize(("document", "message"), [
    ([], 'expected {"engine"'),
    ({"engine": {}, "requests": []}, '"engine" needs "num_blocks"'),
    ({"engine": {"num_blocks": 4, "blocks": 2}, "requests": []}, "'blocks': 2"),
    ({"engine": {"num_blocks": True}, "requests": []}, '"num_blocks" is an integer, not True'),
    ({"engine": {"num_blocks": 4, "prefix_caching": 1}, "requests": []}, "true or false, not 1"),
    ({"engine": {"num_blocks": 0}, "requests": []}, "num_blocks must be at least 1, not 0"),
    ({"engine": {"num_blocks": 4, "preempt_by": "luck"}, "requests": []}, "choose from recompute"),
    ({"engine": {"num_blocks": 4}, "requests": {}}, '"requests" is a list'),
    ({"engine": {"num_blocks": 4}, "requests": [7]}, "a request has"),
    ({"engine": {"num_blocks": 4}, "requests": [{**RUNS, "prompt": []}]}, "request 'A': expected"),
    ({"engine": {"num_blocks": 4}, "requests": [{**RUNS, "outputs": [[]]}]}, "request 'A'"),
    ({"engine": {"num_blocks": 4}, "requests": [{**RUNS, "arrival_step": -1}]}, "request 'A'"),
    ({"engine": {"num_blocks": 4}, "requests": [RUNS, RUNS]}, "same name: A, A"),
])
def test_a_document_that_is_no_scenario_is_refused(document, message):
    with pytest.raises(ValueError, match=message.replace("{", r"\{")):
        read_scenario(document)
