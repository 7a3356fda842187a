"""minipar shard: the local program of an annotated model, without any ranks."""

import json

import pytest

from minipar.commands.main import main

TWO_WEIGHTS = ["--annotate", "ids=dp", "--annotate", "h.*.attn.c_attn.weight=(None, tp)",
               "--annotate", "h.*.mlp.c_fc.weight=(None, tp)"]


def run(capsys, *words):
    assert main(["shard", *words]) == 0
    return capsys.readouterr().out


def tables(capsys, *words):
    return json.loads(run(capsys, *words, "--json"))["tables"]


def test_megatron_from_two_weights(capsys, tmp_path):
    out = run(capsys, "gpt", "--mesh", "dp=2,tp=4", *TWO_WEIGHTS, "--inputs",
              "--png", str(tmp_path / "graph.png"))
    assert "a rank sends" in out
    assert (tmp_path / "graph.png").stat().st_size > 10_000
    inputs, program = tables(capsys, "gpt", "--mesh", "dp=2,tp=4", *TWO_WEIGHTS, "--inputs")
    found = {row[0]: row[2:4] for row in inputs["rows"]}
    assert found["h.2.mlp.c_proj.weight"] == ["(tp, ·)", "found"]
    assert found["h.2.mlp.c_fc.weight"] == ["(·, tp)", "annotation"]
    assert ["h.1 … h.3", "as h.0"] in [row[:2] for row in program["rows"]]
    forward = {row[0]: row[5] for row in program["rows"]}
    x = 4 * 64 * 128 * 4
    assert forward["h.0.attn.c_proj"] == [["all-reduce", ["tp"], False, 2 * x * 3 / 4]]


def test_conflicts_are_told(capsys):
    _, conflicts = tables(capsys, "gpt", "--mesh", "dp=4", "--annotate", "ids=dp", "--annotate",
                          "h.*.weight=dp")
    assert conflicts["rows"][0] == ["h.0.attn.c_attn", "h.0.ln_1", "dp", "ids (dp)",
                                    "h.0.attn.c_attn.weight (dp)",
                                    "it comes from the larger tensor"]


def test_search_shows_what_it_found_beside_layouts_by_hand(capsys):
    pytest.importorskip("scipy", reason="automatic sharding needs SciPy's solver")
    _, beside = tables(capsys, "gpt", "--mesh", "dp=2,tp=2", "--layers", "1", "--search",
                       "--flops", "1e12")
    names = [row[0] for row in beside["rows"]]
    assert names == ["found", "the batch over all ranks",
                     "two weights a block over dp, the batch over the rest",
                     "two weights a block over tp, the batch over the rest"]
    assert beside["rows"][0][1] <= min(row[1] for row in beside["rows"]) * (1 + 1e-9)


def test_an_mlp(capsys):
    (program,) = tables(capsys, "mlp", "--mesh", "tp=2", "--annotate", "0.weight=(None, tp)")
    assert [row[5] for row in program["rows"] if row[5]] == [[["all-reduce", ["tp"], False, 2048]]]


@pytest.mark.parametrize(("words", "sentence"), [
    (["--mesh", "dp"], "expected axis=size, for example dp=4"),
    (["--mesh", "dp=2,dp=2"], "axis dp is given twice"),
    (["--mesh", "dp=2", "--annotate", "ids"], "write NAME=SPEC, as 'ids=dp'"),
    (["--mesh", "dp=2", "--annotate", "idz=dp"], "no value of the program is called 'idz'"),
    (["--mesh", "dp=2", "--annotate", "ids=tp"], "names the axis 'tp', but the mesh has dp"),
    (["--mesh", "dp=2", "--annotate", "ids=(dp, dp)"], "names the axis 'dp' twice"),
    (["--mesh", "dp=2", "--annotate", "ids=(dp,,)"], "cannot read the partition spec"),
    (["--mesh", "dp=2", "--annotate", "ids=(dp, (None,))"], "cannot read the partition spec"),
    (["--mesh", "dp=2", "--annotate", "ids=((tp, (dp,)),)"], "cannot read the partition spec"),
    (["--mesh", "dp=2", "--annotate", "ids=(None, None, dp)"], "leave some out"),
    (["--mesh", "dp=2", "--annotate", "ids=dp", "--priority", "x=1"], "the name of an annotation"),
    (["--mesh", "dp=2", "--priority", "ids=1"], "--priority orders annotations: add --annotate"),
    (["--mesh", "dp=2", "--batch", "0"], "--batch must be at least 1"),
    (["--mesh", "dp=2", "--search", "--annotate", "ids=dp"], "--annotate says what is sharded,"),
    (["--mesh", "dp=2", "--search", "--memory", "10"], "no sharding fits 10 bytes on a rank"),
    (["--mesh", "dp=2", "--search", "--bandwidth", "dp"], "as dp=1e10,tp=1e11"),
    (["--mesh", "dp=2", "--search", "--flops", "-1"], "are positive"),
    (["--mesh", "dp=2", "--png", "x.doc"], "give a name that ends in .png"),
])
def test_mistakes_are_one_line(capsys, words, sentence):
    assert main(["shard", "gpt", *words]) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1
