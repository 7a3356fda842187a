"""`minipar collective`: any operation by any algorithm, counted, drawn, written; mistakes named."""

import json
import re

import pytest

from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.cost import choose, predict
from minipar.commands import collective as collective_command
from minipar.commands.main import main

ALL = [(operation, algorithm) for operation, algorithms in ALGORITHMS.items()
       for algorithm in [*algorithms, "auto"]]
NAMES = [f"{operation}-{algorithm}" for operation, algorithm in ALL]


def run(capsys, *words) -> str:
    assert main(["collective", *map(str, words)]) == 0
    return capsys.readouterr().out


def numbers(output: str) -> dict:
    """The rows of the table: {what: (predicted, counted, equal or ≠)}."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]]
            for line in output.splitlines() if line.startswith("│")]
    return {what: cells for what, *cells in rows}


@pytest.mark.parametrize(("operation", "algorithm"), ALL, ids=NAMES)
@pytest.mark.one_in(4)
def test_counted_is_predicted(capsys, operation, algorithm):
    for p, nodes in ((1, 1), (3, 1), (8, 2)):
        output = run(capsys, operation, "--algorithm", algorithm, "-p", p, "--nodes", nodes,
                     "--bytes", 148)
        table = numbers(output)
        assert len(table) == 5 and "≠" not in output
        assert [row[2] for row in table.values()] == ["equal"] * 4 + [""]
        messages = int(table["messages of all ranks"][1])
        assert (messages > 0) == (p > 1) == ("rank 0" in output) == ("no messages" not in output)
        if 148 % (4 * p) == 0:      # the model cuts bytes, the collective numbers of four
            predicted, took, _ = list(table.values())[-1]
            assert predicted == took


def test_the_table_has_the_numbers_of_a_ring(capsys):
    table = numbers(run(capsys, "all_reduce", "--algorithm", "ring", "-p", 8, "--bytes", "1MB"))
    assert [row[:2] for row in table.values()] == [
        ["14"] * 2, ["112"] * 2, ["1,750,000"] * 2, ["875,000"] * 2, ["245", "245"]]


def test_what_differs_is_marked(capsys, monkeypatch):
    right = predict("all_reduce", "ring", 4, 10, 4)
    monkeypatch.setattr(collective_command, "predict",
                        lambda *args, **options: right._replace(rounds=7))
    table = numbers(run(capsys, "all_reduce", "--algorithm", "ring", "-p", 4, "--bytes", 40))
    assert [row[2] for row in table.values()] == ["≠", "equal", "equal", "equal", ""]


@pytest.mark.parametrize("size", [4, "1MB"])
def test_auto_says_what_it_takes(capsys, size):
    algorithm = choose("all_reduce", 8, 4 if size == 4 else 10**6)
    assert f"all_reduce by {algorithm}, 8 ranks" in run(capsys, "all_reduce", "--bytes", size)


@pytest.mark.parametrize(("p", "signature"), [(4, "rank 3"), (20, "rank 16")])
def test_files(capsys, tmp_path, p, signature):
    picture, trace = tmp_path / "a" / "ring.svg", tmp_path / "ring.json"
    output = run(capsys, "all_gather", "--algorithm", "ring", "-p", p, "--bytes", "4KiB",
                 "--png", picture, "--perfetto", trace)
    assert output.replace("\n", "").count("wrote") == 2
    assert "<svg" in picture.read_text() and f"<!-- {signature} -->" in picture.read_text()
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(e["ph"] == "s" for e in events) == p * (p - 1)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a", "ring.json"]


@pytest.mark.parametrize("words", [["broadcast", "--algorithm", "chain"], ["barrier"],
                                   ["all_reduce", "--algorithm", "hierarchical", "--nodes", "2"]])
def test_page(capsys, tmp_path, words):
    path = tmp_path / "page.html"
    assert "wrote" in run(capsys, *words, "-p", 4, "--html", path)
    assert f"{words[0]} by " in path.read_text() and "</html>" in path.read_text()


@pytest.mark.parametrize(("words", "message"), [
    (["all_reduce", "-p", "17", "--html", "a.html"], "--html shows at most 16 ranks, not 17"),
    (["exscan", "-p", "4", "--html", "a.html"], "the rounds of 'exscan' cannot be recorded"),
    (["all_sum"], "invalid choice: 'all_sum' (choose from"),
    (["scan", "--algorithm", "ring"],
     "unknown algorithm 'ring' of scan: choose from recursive_doubling, linear, auto"),
    (["barrier", "--algorithm", "mpi"], "unknown algorithm 'mpi'"),
    (["all_reduce", "-p", "9", "--nodes", "2"], "-p 9 --nodes 2: give as many ranks for every"),
    (["all_reduce", "-p", "0"], "--ranks must be at least 1, not 0"),
    (["all_reduce", "--bytes", "7"], "--bytes 7: give a multiple of 4"),
    (["all_reduce", "--bytes", "many"], "--bytes many: give a multiple of 4"),
    (["all_reduce", "-p", "4096"], "4,096 ranks would hold 4.096 GB: give at most 262,144"),
    (["all_reduce", "--png", "a.what"], "'a.what' does not say which kind of picture"),
    (["all_reduce", "-p", "x"], "--help lists the options"),
    ([], "operation")])
def test_mistakes_are_one_line_and_status_2(capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    try:
        status = main(["collective", *words])
    except SystemExit as error:
        status = error.code
    assert status == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "size"), [
    ("0", 0), ("4096", 4096), ("64KiB", 65536), ("64 kb", 64000), ("1.5M", 1500000),
    ("1MiB", 1048576), ("0.1GB", 10**8)])
def test_sizes(text, size):
    assert collective_command.num_elements(text, 2) * 4 == size


def test_help_names_every_operation(capsys):
    with pytest.raises(SystemExit):
        main(["collective", "--help"])
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    assert set(ALGORITHMS) <= words
