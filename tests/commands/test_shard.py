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
    assert "h.1 … h.3" in out
    assert (tmp_path / "graph.png").stat().st_size > 10_000
    inputs, program = tables(capsys, "gpt", "--mesh", "dp=2,tp=4", *TWO_WEIGHTS, "--inputs")
    found = {row[0]: row[2:4] for row in inputs["rows"]}
    assert found["h.2.mlp.c_proj.weight"] == ["(tp, ·)", "found"]
    assert found["h.2.mlp.c_fc.weight"] == ["(·, tp)", "annotation"]
    forward = {row[0]: row[4] for row in program["rows"]}
    x = 4 * 64 * 128 * 4
    assert forward["h.0.attn.c_proj"] == [["all-reduce", ["tp"], False, 2 * x * 3 / 4]]


def test_conflicts_are_told(capsys):
    _, conflicts = tables(capsys, "gpt", "--mesh", "dp=4", "--annotate", "ids=dp", "--annotate",
                          "h.*.weight=dp")
    assert conflicts["rows"][0] == ["h.0.attn.c_attn", "h.0.ln_1", "dp", "ids (dp)",
                                    "h.0.attn.c_attn.weight (dp)",
                                    "it comes from the larger tensor"]


def test_an_mlp(capsys):
    (program,) = tables(capsys, "mlp", "--mesh", "tp=2", "--annotate", "0.weight=(None, tp)")
    assert [row[4] for row in program["rows"] if row[4]] == [[["all-reduce", ["tp"], False, 2048]]]


@pytest.mark.parametrize(("words", "sentence"), [
    (["--mesh", "dp"], "name each axis once with its size, as dp=2,tp=4"),
    (["--mesh", "dp=2,dp=2"], "name each axis once"),
    (["--mesh", "dp=2", "--annotate", "ids"], "write NAME=SPEC, as 'ids=dp'"),
    (["--mesh", "dp=2", "--annotate", "idz=dp"], "no value of the program is called 'idz'"),
    (["--mesh", "dp=2", "--annotate", "ids=tp"], "names the axis 'tp', but the mesh has dp"),
    (["--mesh", "dp=2", "--annotate", "ids=(dp, dp)"], "names the axis 'dp' twice"),
    (["--mesh", "dp=2", "--annotate", "ids=(dp,,)"], "cannot read the partition spec"),
    (["--mesh", "dp=2", "--annotate", "ids=(None, None, dp)"], "leave some out"),
    (["--mesh", "dp=2", "--annotate", "ids=dp", "--priority", "x=1"], "the name of an annotation"),
    (["--mesh", "dp=2", "--batch", "0"], "--batch must be at least 1"),
    (["--mesh", "dp=2", "--png", "x.doc"], "give a name that ends in .png"),
])
def test_mistakes_are_one_line(capsys, words, sentence):
    assert main(["shard", "gpt", *words]) == 2
    err = capsys.readouterr().err
    assert sentence in err and err.count("\n") == 1
