"""Rules for what comes out of a file: what they allow, and what they say of what they do not."""

import pytest

from minipar.checkpoint_file.description_rules import (
    FLAG,
    REAL,
    RECORD,
    TEXT,
    fault,
    number,
    one_of,
    whole,
)

TABLE = {"step": whole(0), "kind": one_of("gpt", "mlp"), "losses": [REAL], "rate": number(0, 1),
         "model": {"sizes": [whole(1, 9)], "tied?": FLAG}, "name?": TEXT, "options": RECORD}
GOOD = {"step": 3, "kind": "mlp", "losses": [1.5, 2, float("nan")], "rate": 0.5,
        "model": {"sizes": [2, 3], "tied": True}, "options": {"any": 1}, "unknown": object()}


def test_what_is_right_has_no_fault():
    assert fault(GOOD, TABLE) == ""
    assert fault({**GOOD, "name": None, "model": {"sizes": []}}, TABLE) == ""


@pytest.mark.parametrize("changed, says", [
    ({"step": -1}, "step is -1, not a whole number of at least 0"),
    ({"step": True}, "step is True, not a whole number of at least 0"),
    ({"step": 1.0}, "step is 1.0, not a whole number of at least 0"),
    ({"step": None}, "step is None, not a whole number of at least 0"),
    ({"kind": "x" * 99}, f"kind is '{'x' * 39}…, not one of gpt, mlp"),
    ({"losses": [1, "2"]}, "losses[1] is '2', not a number"),
    ({"losses": {}}, "losses is {}, not a list"),
    ({"rate": 1.5}, "rate is 1.5, not a number from 0 to 1"),
    ({"rate": float("nan")}, "rate is nan, not a number from 0 to 1"),
    ({"model": {"sizes": [2, 10]}}, "model.sizes[1] is 10, not a whole number from 1 to 9"),
    ({"model": {}}, "model has no sizes"),
    ({"model": {"sizes": [], "tied": 1}}, "model.tied is 1, not true or false"),
    ({"model": []}, "model is [], not a record of names and values"),
    ({"name": 5}, "name is 5, not a text"),
    ({"options": 5}, "options is 5, not a record of names and values")])
def test_what_is_wrong_is_named(changed, says):
    assert fault({**GOOD, **changed}, TABLE) == says


def test_what_is_missing_or_no_record_is_said():
    assert fault({}, TABLE) == "it has no step"
    assert fault([], TABLE) == "it is [], not a record of names and values"
    assert fault({"x": float("inf")}, {"x": number(0)}) == "x is inf, not a number of at least 0"
    assert fault(1 << 63, REAL) and fault(-10**400, whole(-5)) and not fault(1e308, REAL)
    assert fault(1, one_of(True)) and fault(True, one_of(1))
