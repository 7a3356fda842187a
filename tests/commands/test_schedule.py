"""`minipar schedule`: predicted beside simulated, files, your own table; mistakes in one line."""

import json

import pytest

from minipar.commands.main import main
from minipar.parallel.pipeline.schedule.csv import from_csv
from minipar.parallel.pipeline.schedule.registry import SCHEDULES, make_schedule


def run(capsys, *words) -> str:
    assert main(["schedule", *map(str, words)]) == 0
    return capsys.readouterr().out


def numbers(output: str) -> dict:
    """The rows of the table: {what: (predicted, simulated)}."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]]
            for line in output.splitlines() if line.startswith("│")]
    return {what: tuple(cells) for what, *cells in rows}


@pytest.mark.parametrize("name", SCHEDULES)
def test_predicted_is_simulated(capsys, name):
    table = numbers(run(capsys, name, "-p", 4, "-m", 8))
    for what, (predicted, simulated) in table.items():
        assert simulated == "" or predicted in ("–", simulated), what
    assert name == "zb_v" or (table["makespan in s"][0] == "–") == (
        SCHEDULES[name].makespan is None)


def test_what_it_says_of_1f1b(capsys):
    output = run(capsys, "1f1b", "-p", 4, "-m", 8)
    assert output.startswith("1f1b, 4 ranks, 8 microbatches")
    assert numbers(output) == {
        "makespan in s": ("33", "33"), "no schedule on these stages beats": ("33", ""),
        "bubble, of the total": ("27.3%", "27.3%"), "bubble, of the ideal": ("37.5%", "37.5%"),
        "most microbatches in flight, rank 0": ("4", "4"),
        "most microbatches in flight, rank 3": ("1", "1"), "messages": ("48", "48")}
    assert "rank 3 " in output and "peak 1" in output


def test_all_schedules_do_the_same_work(capsys):
    """A rank's virtual stages share its layers: more of them, a smaller bubble."""
    found = [numbers(run(capsys, "interleaved", "-p", 4, "-m", 8, "--virtual-stages", v))
             ["makespan in s"] for v in (1, 2, 4)]
    assert found == [("33", "33"), ("28.5", "28.5"), ("26.25", "26.25")]


def test_times_links_and_bytes(capsys):
    table = numbers(run(capsys, "zb_h1", "--forward", 3, "--input", 4, "--weight", 2,
                        "--activation-bytes", 1e6))
    assert table["makespan in s"] == ("87", "87")
    assert table["most activations, rank 3"] == ("4 MB", "4 MB")
    slow = numbers(run(capsys, "1f1b", "--latency", 0.2, "--transfer", 0.3))
    assert slow["makespan in s"] == ("–", "41")


def test_files(capsys, tmp_path):
    names = {"--csv": "a.csv", "--html": "a.html", "--png": "a.png", "--perfetto": "a.json"}
    words = [word for option, name in names.items() for word in (option, tmp_path / name)]
    output = run(capsys, "1f1b", "-p", 2, "-m", 3, *words)
    assert output.count("wrote ") == len(names)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    assert from_csv((tmp_path / "a.csv").read_text()) == make_schedule("1f1b", 2, 3)[0]
    again = run(capsys, "--from-csv", tmp_path / "a.csv")
    assert numbers(again)["makespan in s"] == ("–", "12")


def test_a_bad_table_is_one_line_and_a_picture_that_points(capsys, tmp_path):
    (tmp_path / "mine.csv").write_text("0F0,0B0\n1B0,1F0\n")
    assert main(["schedule", "--from-csv", str(tmp_path / "mine.csv"), "--png",
                 str(tmp_path / "mine.png")]) == 2
    assert capsys.readouterr().err.endswith(
        ": 1B0 (rank 1, position 0) comes before 1F0 (position 1), which it needs\n")
    assert (tmp_path / "mine.png").exists()


@pytest.mark.parametrize(("words", "message"), [
    ([], "which schedule? Choose from gpipe, "),
    (["2f2b"], "invalid choice: '2f2b' (choose from"),
    (["1f1b", "-p", "0"], "--ranks must be at least 1, not 0"),
    (["1f1b", "-m", "0"], "--microbatches must be at least 1, not 0"),
    (["1f1b", "-p", "x"], "--help lists the options"),
    (["1f1b", "--virtual-stages", "2"], "1f1b has 1 stage on each rank, not 2"),
    (["interleaved", "--group-size", "2"], "takes groups of 4 to 8 microbatches, not of 2"),
    (["1f1b", "-p", "4096", "-m", "4096"], "actions are too many"),
    (["1f1b", "--forward", "-1"], "--forward -1: give 0, or a number from"),
    (["1f1b", "--latency", "nan"], "--latency nan: give 0, or a number from"),
    (["1f1b", "--forward", "1e-300"], "--forward 1e-300: give 0, or a number from 1e-15"),
    (["zb_v", "-p", "5000", "-m", "1"], "actions are too many"),
    (["1f1b", "-p", "300", "--png", "a.png"], "--png has room for 256 ranks, not for 300"),
    (["1f1b", "--csv", "."], ".: Is a directory: give a file that can be read, or a place"),
    (["1f1b", "--forward", "0", "--input", "0", "--weight", "0"], "something has to take time"),
    (["1f1b", "--from-csv", "x.csv"], "NAME says which schedule it is, which does not go"),
    (["--from-csv", "x.csv", "-p", "2"], "--ranks says which schedule it is"),
    (["--from-csv", "x.csv", "--html", "a.html"], "--html shows schedules by name, which"),
    (["1f1b", "-p", "9", "--html", "a.html"], "the page has p from 1 to 8 in steps of 1, not 9"),
    (["--from-csv", "nothing.csv"], "nothing.csv: No such file or directory: give a file"),
    (["1f1b", "--png", "picture"], "'picture' does not say which kind of picture: give a name"),
    (["1f1b", "--png", "a.what"], "'a.what' does not say which kind of picture: give a name")])
def test_mistakes_are_one_line_and_status_2(capsys, monkeypatch, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    try:
        status = main(["schedule", *words])
    except SystemExit as error:
        status = error.code
    assert status == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_cannot_be_read_names_its_cell(capsys, tmp_path):
    for text, said in (("0F0\n1Q0\n", "line 2, column 1: '1Q0' is no action"),
                       ("", "the table has no actions"), ("0F0\n2F0\n", "anything for stage 1")):
        (tmp_path / "a.csv").write_text(text)
        assert main(["schedule", "--from-csv", str(tmp_path / "a.csv")]) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    assert main(["schedule", "--from-csv", str(tmp_path / "a.csv")]) == 2
    assert "is no text" in capsys.readouterr().err
