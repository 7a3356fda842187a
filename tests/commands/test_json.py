"""--json: every command that prints a table prints it as one JSON object, and nothing else."""

import json

import pytest

from minipar.commands.main import main
from minipar.commands.tables import Column, Shown, Table

pytestmark = pytest.mark.usefixtures("no_pictures")

SMALL = "--data digits --hidden 8 --batch 8"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert main(f"train {SMALL} --steps 2 --out {folder}".split()) == 0
    return folder


def tables(capsys, line: str) -> dict[str, dict]:
    """The tables of a command by title; the schema holds."""
    capsys.readouterr()
    assert main(line.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"command", "version", "tables"} and line.startswith(found["command"])
    for table in found["tables"]:
        assert set(table) == {"title", "columns", "rows"}
        assert all(set(column) == {"name", "unit"} and column["name"]
                   for column in table["columns"])
        assert all(len(row) == len(table["columns"]) for row in table["rows"])
    return {table["title"]: table for table in found["tables"]}


def column(table: dict, name: str) -> dict:
    """{first cell: cell of the column} of each row."""
    i = [column["name"] for column in table["columns"]].index(name)
    return {row[0]: row[i] for row in table["rows"]}


def test_train(capsys, tmp_path):
    found = tables(capsys, f"train {SMALL} --steps 3 --ranks 2 --verify 1 --out {tmp_path} --json")
    figures = column(found["training"], "value")
    assert figures["steps"] == 3 and 0 < figures["final loss"] < 5
    assert figures["distance to one rank"] < 1e-10
    assert figures["checkpoint.npz"] == str(tmp_path / "checkpoint.npz")


def test_evaluate_and_quantize(capsys, trained, tmp_path):
    loss = column(tables(capsys, f"evaluate {trained} --json")["evaluation"], "value")["loss"]
    found = tables(capsys, f"quantize {trained} --out {tmp_path} --json")
    assert column(found["score"], "before")["loss in nats"] == loss
    sizes = found[""]
    assert sizes["columns"][1] == {"name": "before", "unit": "B"}
    assert column(sizes, "ratio")["the model's arrays"] > 2


def test_prune_and_distill(capsys, trained, tmp_path):
    found = tables(capsys, f"prune {trained} --amount 0.5 --out {tmp_path / 'p'} --json")
    kept = column(found["what is kept"], "share")
    assert sum(kept.values()) / len(kept) == pytest.approx(0.5, abs=0.2)
    found = tables(capsys, f"distill {trained} --hidden 4 --steps 2 --out {tmp_path / 'd'} --json")
    assert column(found["distillation"], "parameters") == {"teacher": 610, "student": 310}


def test_schedule_and_collective(capsys):
    found = tables(capsys, "schedule 1f1b -p 4 -m 8 --json")["1f1b, 4 ranks, 8 microbatches"]
    assert column(found, "simulated")["makespan in s"] == 33
    assert column(found, "predicted")["bubble, of the ideal"] == pytest.approx(3 / 8)
    (found,) = tables(capsys, "collective all_reduce --algorithm ring -p 4 --json").values()
    assert column(found, "counted")["rounds"] == 6
    assert column(found, "check")["messages of all ranks"] == "equal"


def test_doctor(capsys):
    capsys.readouterr()
    status = main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    what, problems = found["tables"]
    assert "MPI library" in column(what, "found") and bool(problems["rows"]) == (status == 1)


def test_exercises(capsys):
    found = tables(capsys, "exercise list --kind core --json")["exercises"]
    assert set(column(found, "kind").values()) == {"core"}


def test_a_mistake_leaves_stdout_empty(capsys):
    assert main(["schedule", "1f1b", "-m", "0", "--json"]) == 2
    printed = capsys.readouterr()
    assert not printed.out and printed.err.count("\n") == 1


def test_both_forms_come_from_one_table():
    table = Table.of("a [b]", "what", Column("size", "B"), "share")
    table.add("x [y]", Shown(2048, "2 kB"), float("nan"))
    table.add("z", None, 0.5)
    assert table.as_json() == {
        "title": "a [b]", "rows": [["x [y]", 2048, None], ["z", None, 0.5]],
        "columns": [{"name": "what", "unit": ""}, {"name": "size", "unit": "B"},
                    {"name": "share", "unit": ""}]}
    made = table.as_rich()
    assert [list(column.cells) for column in made.columns] == [
        [r"x \[y]", "z"], ["2 kB", "–"], ["nan", "0.5"]]
