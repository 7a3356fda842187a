"""Numbers of a simulated step: they add up, and are those of the plan where both apply."""

import json
from dataclasses import replace

import pytest

from minipar.commands.main import main
from minipar.nn import GPTConfig
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.plan.cluster import read_cluster
from minipar.plan.layout import Layout
from minipar.plan.memory import memory
from minipar.plan.models import read_model
from minipar.plan.time.step_time import step_time
from minipar.step_simulation import simulate_step
from minipar.step_simulation.failures import FACTORS, Failures, failure_rows, goodput
from minipar.step_simulation.report import (
    fullest,
    parts,
    parts_of_rank,
    pipeline_timeline,
    rank_maps,
    speed,
)
from minipar.viz import draw_rank_map
from tests.support.sweeps import every

SMALL = GPTConfig(vocab_size=64, context=32, num_layers=4, num_heads=4, width=64)
GPT3 = read_model("gpt3-175b")


def step_of(cluster="4x2:a100", model=SMALL, **sizes):
    return simulate_step(read_cluster(cluster), model, Layout(**{"sp": False} | sizes))


@pytest.mark.parametrize("cluster, sizes, layers", [
    ("2x8:a100/megatron-2021", {"pp": 2, "tp": 8, "batch": 16}, 24),
    *[pytest.param(*case, GPT3.num_layers, marks=pytest.mark.slow) for case in (
        ("8x8:a100/megatron-2021", {"pp": 8, "tp": 8, "batch": 32}),
        ("8x8:h100/llama3", {"pp": 8, "tp": 8, "batch": 32}),
        ("1x8:a100/megatron-2022", {"tp": 8, "batch": 2}),
        ("8x8:a100/megatron-2022", {"pp": 8, "tp": 8, "batch": 64, "sp": True,
                                    "schedule": "interleaved", "v": 3}),
        ("128x8:a100/megatron-2022", {"dp": 8, "pp": 16, "tp": 8, "kind": "zero1", "batch": 256}),
        ("128x8:h100/megatron-core", {"dp": 8, "pp": 16, "tp": 8, "kind": "zero1", "batch": 512}))]
])
def test_the_plan_and_the_simulation_agree_within_3_percent(cluster, sizes, layers):
    """Nothing recomputed, tp within a node, large products: a step of formulas, and of code."""
    step = step_of(cluster, replace(GPT3, num_layers=layers), **sizes)
    assert step.seconds == pytest.approx(
        step_time(step.cluster, step.model, step.layout).seconds, rel=0.03)


@pytest.mark.parametrize("sizes", [
    {"dp": 4, "kind": "zero1"}, {"dp": 4}, {"dp": 2, "pp": 2, "kind": "zero1"}, {"pp": 4},
    {"dp": 2, "tp": 2}, {"dp": 2, "tp": 2, "sp": True}])
def test_both_have_the_same_bytes(sizes):
    """In minipar's own formats, of which the formulas know each array."""
    step = step_of("1x4:cpu_core", **sizes, batch=16)
    planned, (_, simulated) = memory(step.cluster, SMALL, step.layout), fullest(step)
    for kind in ("parameters", "gradients", "optimizer states"):
        assert simulated[kind] == planned[kind]
    # the peak is where backward begins: the logits are gone; token ids are not all counted
    assert simulated["activations"] == pytest.approx(planned["activations"], rel=2e-3)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["zb_v", "v_half", "dualpipe_v", "chimera", "dualpipe"])
def test_ranks_with_two_stages_have_the_weights_of_both(name, tied):
    """The first and the last one share a tied table; of two ways each stage is on two ranks."""
    step = step_of("1x4:cpu_core", replace(SMALL, tied=tied), schedule=name, batch=16,
                   **({"pp": 4} if SCHEDULES[name].two_ways else {"pp": 2, "dp": 2}))
    planned, (_, simulated) = memory(step.cluster, step.model, step.layout), fullest(step)
    for kind in ("parameters", "gradients", "optimizer states"):
        assert simulated[kind] == planned[kind]
    assert simulated["activations"] == pytest.approx(planned["activations"], rel=0.04)


@pytest.mark.parametrize("pp, layers, software, most", [
    (4, 8, "minipar", 0.04), pytest.param(8, GPT3.num_layers, "megatron-core", 0.07,
                                          marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", every(4, SCHEDULES))
def test_the_plan_and_the_simulation_agree_on_schedules(name, pp, layers, software, most):
    v = 2 if SCHEDULES[name].any_stages else 1
    step = step_of(f"{2 * pp}x8:h100/{software}", replace(GPT3, num_layers=layers), dp=2, pp=pp,
                   tp=8, v=v, schedule=name, batch=64, kind="zero1", sp=True)
    assert step.seconds == pytest.approx(
        step_time(step.cluster, step.model, step.layout).seconds, rel=most)


def test_the_parts_of_each_rank_add_up_to_the_step():
    step = step_of(dp=2, pp=2, tp=2, kind="zero1", batch=16)
    for rank in step.ranks.values():
        found = parts_of_rank(step, rank)
        assert sum(found.values()) == pytest.approx(step.seconds) and min(found.values()) > -1e-12
    found, known = parts(step), speed(step)
    assert sum(found.values()) == pytest.approx(step.seconds)
    assert {"forward", "optimizer", "messages: tp", "messages: dp", "loss"} <= found.keys()
    assert known["MFU"] == pytest.approx(known["FLOP/s per GPU"] / 312e12)
    assert 0 < known["bubble"] < 1 and known["HFU"] > 0
    assert sum(step.num_ranks_of.values()) == 8


def test_a_timeline_and_a_map(tmp_path):
    step = step_of(dp=2, pp=2, tp=2, kind="zero1", batch=16)
    timeline = pipeline_timeline(step)
    assert timeline.world_ranks == [0, 4] and len(timeline.intervals) == 2 * 2 * 8
    maps = rank_maps(step)
    assert all(grid.shape == (2, 4) and (grid > 0).all() for grid in maps.values())
    assert draw_rank_map(tmp_path / "map.png", maps, "title").stat().st_size > 1000
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_rank_map(tmp_path / "none.png", {})


def test_a_long_run_fails_by_its_seed():
    failures = Failures(mtbf=3600.0, checkpoint=20.0, restart=100.0, run=30 * 86400.0, seed=1)
    assert failures.young == pytest.approx((2 * 20 * 3600) ** 0.5)
    share, number = goodput(failures, failures.young)
    assert (share, number) == goodput(failures, failures.young) and 600 < number < 800
    # 20 s of every 379.5 + 20 s, half an interval for each failure, and its restart
    lost = 20 / (failures.young + 20) + (failures.young / 2 + 100) / 3700
    assert share == pytest.approx(1 - lost, abs=0.02)
    (_, young, at_young, _), (_, best, at_best, _), *others = failure_rows(failures)
    assert at_young > at_best - 0.01 and 0.5 < best / young < 2
    assert all(at_best > each[2] for each in others) and len(FACTORS) == 25
    never = Failures(1e12, 20.0, 100.0, 86400.0)
    assert goodput(never, 864 - 20.0) == (pytest.approx(1 - 20 / 864, abs=0.01), 0)


def run(capsys, *words):
    status = main(["simulate", *words])
    return status, capsys.readouterr()


def test_the_command(tmp_path, capsys):
    words = ["--model", "layers=4,width=64,heads=4,vocab=64,gated=0", "--sequence", "32",
             "--cluster", "4x2:a100", "--mesh", "dp=2,pp=2,tp=2", "--batch", "16", "--strategy",
             "zero1", "--schedule", "interleaved", "--sequence-parallel", "--mtbf", "1000",
             "--slow-ranks", "3=1.5"]
    files = [tmp_path / name for name in ("a.png", "b.png", "c.json")]
    status, shown = run(capsys, *words, "--timeline", str(files[0]), "--map", str(files[1]),
                        "--perfetto", str(files[2]), "--ranks", "0,7")
    assert status == 0 and "8 ranks were simulated, which stand for 8" in shown.out
    assert all(file.stat().st_size > 1000 for file in files)
    assert json.loads(files[2].read_text("utf-8"))["traceEvents"]
    status, shown = run(capsys, *words, "--json")
    titles = [table["title"] for table in json.loads(shown.out)["tables"]]
    assert status == 0 and len(titles) == 4 and titles[0] == "speed"


def test_a_layout_of_the_plan(tmp_path, capsys):
    file = tmp_path / "run.toml"
    assert main(["plan", "--model", "layers=4,width=64,heads=4,vocab=256,gated=0", "--cluster",
                 "1x4:cpu_core", "--batch", "16", "--sequence", "64", "--explain",
                 "dp=2,pp=2,kind=zero1", "--emit", str(file)]) == 0
    capsys.readouterr()
    status, shown = run(capsys, "--config", str(file), "--cluster", "1x4:cpu_core",
                        "--vocabulary", "256")
    assert status == 0 and "dp=2, pp=2, 1f1b, zero1, microbatch 1" in shown.out


@pytest.mark.parametrize("words, layout", [
    ((), "dp=4, fsdp, remat full, microbatch 4"),
    (("--mesh", "dp=2,tp=2"), "dp=2, tp=2, fsdp, remat full, microbatch 8"),
    (("--strategy", "zero1", "--batch", "32"), "dp=4, zero1, remat full, microbatch 4")])
def test_a_file_without_a_mesh(tmp_path, capsys, words, layout):
    file = tmp_path / "run.toml"
    file.write_text('[data]\nbatch = 16\n[parallel]\nstrategy = "fsdp"\n[memory]\nremat = "full"\n')
    status, shown = run(capsys, "--config", str(file), "--cluster", "1x4:cpu_core",
                        "--vocabulary", "256", *words)
    assert status == 0 and layout in shown.out, shown


@pytest.mark.parametrize("words, message", [
    ([], "simulate needs a model"), (["--model", "gpt5"], "unknown model 'gpt5'"),
    (["--model", "gpt3-175b", "--mesh", "xp=8"], "no axis 'xp': choose from pp, dp, ep, cp, tp"),
    (["--model", "gpt3-175b", "--mesh", "tp=4"], "the cluster has 8 GPUs"),
    (["--model", "gpt3-175b", "--mesh", "tp=8", "--slow-ranks", "x"], "expected RANK=FACTOR"),
    (["--model", "gpt3-175b", "--mesh", "tp=8", "--perfetto", "x.json", "--ranks", "a"],
     "expected RANK,…"),
    (["--model", "gpt3-175b", "--mesh", "tp=8", "--checkpoint", "1"], "--mtbf")])
def test_mistakes_are_one_line(words, message, capsys):
    status, shown = run(capsys, *words)
    assert status == 2 and message in shown.err and len(shown.err.splitlines()) == 1
