"""minipar plan: the table, a layout of one's own, the file for train, rows of CSV, mistakes."""

import csv
import io
import json

import pytest

from minipar.commands.main import main
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.train.config_file import read_config

SMALL = ("--model", "layers=4,width=32,heads=4,vocab=64,gated=0", "--cluster", "1x4:cpu_core",
         "--batch", "8", "--sequence", "16")
LLAMA = ("--model", "llama3-8b", "--cluster", "2x8:h100", "--batch", "128", "--sequence", "4096")

pytestmark = pytest.mark.usefixtures("no_pictures")


def run(capsys, *words):
    capsys.readouterr()
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def refused(capsys, *words):
    capsys.readouterr()
    assert main(["plan", *words]) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1
    return said.err


def test_the_best_layout_and_its_reasons(capsys, tmp_path):
    out = run(capsys, *LLAMA, "--pictures", str(tmp_path))
    assert "layouts fit" in out and "8.03 B parameters on 16 GPUs (NVIDIA H100 SXM" in out
    assert "of the step are products, attention, head and loss; the largest other part is" in out
    for name in ("frontier", "tp_pp", "memory"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_json_has_the_tables(capsys):
    tables = {table["title"]: table
              for table in json.loads(run(capsys, *LLAMA, "--json"))["tables"]}
    assert set(tables) == {"plan", "seconds of a step", "memory of the fullest rank",
                           "one other choice"}
    ranked = [row[1] for row in tables["plan"]["rows"]]
    assert ranked == sorted(ranked)
    parts = sum(row[1] for row in tables["seconds of a step"]["rows"])
    assert parts == pytest.approx(ranked[0])


def test_a_layout_of_ones_own(capsys):
    out = run(capsys, *LLAMA, "--explain", "dp=2,tp=8,kind=zero1,microbatch=2")
    assert "dp=2, tp=8, zero1, microbatch 2" in out and "tp messages" in out
    out = run(capsys, *LLAMA, "--explain", "dp=8,pp=2,kind=zero1")
    assert "if it stalls: 7% of measured runs like it did." in out
    out = run(capsys, "--model", "8b", "--cluster", "64x8:h100", "--batch", "512", "--explain",
              "dp=64,tp=4,pp=2,kind=zero1")
    assert "if it does not stall: 3% of measured runs like it did not." in out


def test_one_that_does_not_fit_says_so(capsys):
    out = run(capsys, *LLAMA, "--explain", "dp=16,kind=ddp,microbatch=8")
    assert "it does not fit" in out


def test_minipar_itself_says_where_messages_queue_and_what_it_does_not_know(capsys):
    words = (*LLAMA, "--cluster", "2x8:h100/minipar", "--explain")
    assert "of fsdp beside a pipeline or tp wait for" in run(capsys, *words, "dp=8,pp=2,kind=fsdp")
    assert "wait for each other's ports" not in run(capsys, *words, "dp=8,pp=2,kind=zero1")
    words = ("--model", "mixtral-8x7b", "--batch", "8", "--cluster", "1x8:h100/minipar",
             "--explain")
    assert "expert products" in run(capsys, *words, "dp=8,ep=8")
    assert "of experts beside cp wait for" in run(capsys, *words, "dp=4,cp=2,ep=2")
    said = refused(capsys, *words, "dp=8,offload=activations")
    assert "no formula for offload 'activations': optimizer, or use `minipar simulate`" in said


@pytest.mark.parametrize("layout", [
    "dp=4", "dp=2,tp=2,kind=zero1", "pp=2,dp=2,kind=zero1,microbatch=2", "pp=4,remat=full",
    "pp=2,v=2,tp=2,microbatch=2", "dp=4,kind=fsdp,offload=optimizer"])
@pytest.mark.one_in(2)
def test_train_takes_the_file(capsys, tmp_path, layout):
    path = tmp_path / "run.toml"
    run(capsys, *SMALL, "--explain", layout, "--emit", str(path))
    options = read_config(path)
    assert (options["batch"], options["layers"], options["context"]) == (8, 4, 16)
    assert main(["train", "--config", str(path), "--set", "run.steps=1", "--ranks", "4"]) == 0


def test_train_takes_the_best(capsys, tmp_path):
    path = tmp_path / "run.toml"
    run(capsys, *SMALL, "--emit", str(path))
    assert main(["train", "--config", str(path), "--set", "run.steps=1", "--ranks", "4"]) == 0


def test_simulate_takes_the_file_as_its_last_line_says(capsys, tmp_path):
    path = tmp_path / "run.toml"
    out = run(capsys, "--model", "llama3-1b", "--cluster", "1x4:h100", "--batch", "8",
              "--explain", "dp=2,tp=2", "--emit", str(path))
    line = path.read_text().splitlines()[-1].replace("FILE", str(path))
    words = line.removeprefix("# minipar ").removesuffix(" reads it, too").split()
    assert main([*words, "--cluster", "1x4:h100"]) == 0
    said = "1.24 B parameters on 4 GPUs"
    assert said in out and said in capsys.readouterr().out


@pytest.mark.parametrize("model, rope", [("llama3-8b", "500000"), ("llama2-7b", "10000")])
def test_the_file_has_the_base_of_rotary_positions(capsys, tmp_path, model, rope):
    path = tmp_path / "run.toml"
    run(capsys, "--model", model, "--batch", "64", "--explain", "dp=8,kind=fsdp", "--emit",
        str(path))
    assert read_config(path)["rope"] == rope


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_is_planned(capsys, schedule):
    out = run(capsys, "--model", "llama3-70b", "--cluster", "4x8:h100", "--batch", "64",
              "--explain", f"dp=2,tp=4,pp=4,kind=zero1,schedule={schedule}")
    assert f"pp=4, {schedule}" in out and "bubble" in out


ROWS = """model,nodes,dp,tp,pp,mbs,grad_acc,zero,note
1B,1,8,1,1,2,8,0,first
8B,32,32,4,2,2,4,1,second
"""


def rows_of(capsys, tmp_path, text, *more):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    return run(capsys, "--rows", str(path), *more)


def test_rows(capsys, tmp_path):
    first, second = csv.DictReader(io.StringIO(rows_of(capsys, tmp_path, ROWS)))
    assert (first["note"], second["note"]) == ("first", "second")
    tokens = 8 * 2 * 8 * 4096
    assert float(first["tokens_s"]) == pytest.approx(tokens / float(first["seconds"]), rel=1e-4)
    assert first["fits"] == "1" and 10 < float(first["memory_gb"]) < 76
    assert first["stall_share"] == "0" and first["seconds_stalled"] == first["seconds_usual"]
    assert second["seconds"] == second["seconds_stalled"] > second["seconds_usual"]


def test_rows_of_any_model(capsys, tmp_path):
    """Sizes as columns say the same as the name."""
    sizes = ("model,layers,width,heads,kv_heads,ffn,vocab,tied,sequence,nodes,dp,tp,pp,mbs,"
             "grad_acc,zero\nmine,16,2048,32,32,8192,131072,True,4096,1,8,1,1,2,8,0\n")
    (mine,) = csv.DictReader(io.StringIO(rows_of(capsys, tmp_path, sizes)))
    known, _ = csv.DictReader(io.StringIO(rows_of(capsys, tmp_path, ROWS)))
    assert (mine["seconds"], mine["memory_gb"]) == (known["seconds"], known["memory_gb"])


def test_a_layout_that_cannot_run_does_not_fit(capsys, tmp_path):
    """Its seconds are there, for the model of the row might be cut in other ways."""
    cut = ROWS.replace("1B,1,8,1,1", "1B,4,1,1,32")          # 32 stages of 16 layers
    first, _ = csv.DictReader(io.StringIO(rows_of(capsys, tmp_path, cut)))
    assert first["fits"] == "0" and float(first["memory_gb"]) < 76 and float(first["seconds"]) > 0


def test_rows_as_json(capsys, tmp_path):
    (table,) = json.loads(rows_of(capsys, tmp_path, ROWS, "--json"))["tables"]
    assert len(table["rows"]) == 2 and "seconds" in [c["name"] for c in table["columns"]]


@pytest.mark.parametrize("text, said", [
    ("model,dp\n1B,1\n", "has no column 'tp'"),
    (ROWS.replace("1B,", "9B,"), "row 1: unknown model '9B'"),
    (ROWS.replace("8B,32,32", "8B,32,many"), "row 2: dp is a whole number, not 'many'"),
    (ROWS.replace("1B,1,8", "1B,1,0"), "row 1: axes, mbs and grad_acc are at least 1"),
    (ROWS.replace("1B,1,8", "1B,1,16"), "row 1: 16 ranks do not fit on 1 nodes of 8 GPUs"),
    (ROWS.replace("0,first", "0,first,9,9"), "row 1: there are more cells than columns"),
    (ROWS.replace("8,0,first", "8,7,first"), "row 1: zero is 0 to 3, not 7"),
    (ROWS.replace("1B,1,8", "1B,1,8.5"), "row 1: dp is a whole number, not '8.5'"),
    (ROWS.replace("1B,1,8", "1B,0,8"), "row 1: nodes is at least 1, not 0"),
    (ROWS.replace("1B,1,8", "1B,1,"), "row 1: dp is missing"),
    (ROWS.replace("1B,1,8", ",1,8"), "row 1: a model is missing: give its name, or layers"),
    (ROWS.replace("note", "gpus").replace("first", "8").replace("second", "128"),
     "row 2: gpus is 128, but the layout makes 256"),
    (ROWS.replace("note", "gbs").replace("first", "64"), "row 1: gbs is 64, but the layout makes "
     "128")])
def test_mistakes_in_rows(capsys, tmp_path, text, said):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    assert said in refused(capsys, "--rows", str(path))


@pytest.mark.parametrize("words, said", [
    (("--batch", "8"), "plan needs a model and a batch"),
    (("--model", "llama3-8b"), "--model is planned for the sequences of a step: add --batch N"),
    ((*SMALL, "--rows", "layouts.csv"), "--rows has models and layouts of its own, which does not "
     "go with --model"),
    ((*SMALL, "--batch", "0"), "--batch must be at least 1, not 0"),
    ((*SMALL, "--model", "layers=four"), "expected NAME=N,…, not 'layers=four'"),
    ((*SMALL, "--model", "layers=4,depth=2"), "unknown size 'depth'"),
    ((*SMALL, "--model", "layers=4,width=30,heads=4,vocab=8"), "does not divide into 4 heads"),
    ((*SMALL, "--cluster", "4:h100"), "give NODESxGPUS:NAME"),
    ((*SMALL, "--explain", "dp=3"), "dp·tp·pp·cp is 3, and the cluster has 4 GPUs"),
    ((*LLAMA, "--cluster", "1x1:h100", "--model", "llama3-70b"), "of GPU memory: take more GPUs"),
    (("--rows", "absent.csv"), "absent.csv")])
def test_mistakes(capsys, words, said):
    assert said in refused(capsys, *words)
