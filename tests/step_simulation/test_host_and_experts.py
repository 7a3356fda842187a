"""Offloading takes the host's link, experts send to all others: as much as the plan says."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from minipar.backend.shape_array import ShapeArray
from minipar.commands.main import main
from minipar.nn import GPTConfig
from minipar.parallel.cost.experts import all_to_all_bytes
from minipar.plan.cluster import read_cluster
from minipar.plan.layout import KINDS, Layout
from minipar.plan.memory import memory
from minipar.plan.models import model_of, read_model
from minipar.plan.time.step_time import step_time
from minipar.step_simulation import fullest, parts, simulate_step
from minipar.step_simulation.device import Device
from minipar.step_simulation.fabric import Fabric

H100 = read_cluster("1x8:h100/megatron-core")
GPT3, MIXTRAL = replace(read_model("gpt3-175b"), num_layers=4), read_model("mixtral-8x7b")
SMALL = GPTConfig(vocab_size=256, context=256, num_layers=4, num_heads=4, width=256)


@pytest.mark.parametrize("sizes", [{"tp": 8}, {"tp": 4, "dp": 2, "kind": "zero1"}], ids=str)
def test_offloaded_states_take_as_long_as_in_the_plan(sizes):
    usual, moved = (Layout(**sizes, batch=4, sp=False, offload=name) for name in ("", "optimizer"))
    one, two = (simulate_step(H100, GPT3, layout) for layout in (usual, moved))
    first, second = (step_time(H100, GPT3, layout).seconds for layout in (usual, moved))
    assert two.seconds - one.seconds == pytest.approx(second - first, rel=1e-3)
    assert parts(two)["moving offloaded states"] == pytest.approx(second - first, rel=1e-3)
    (_, kept), (number, others) = fullest(one), fullest(two)
    assert two.ranks[number].on_host == kept.pop("optimizer states") and others == kept
    if sizes["tp"] == 8:
        assert two.seconds == pytest.approx(second, rel=0.03)


def test_offloaded_activations_hide_behind_computation_if_the_link_is_fast():
    layout = Layout(dp=8, batch=16, sp=False)
    usual = simulate_step(H100, SMALL, layout)
    fast, slow = (simulate_step(replace(H100, host=rate), SMALL, replace(
        layout, offload="activations")) for rate in (1e15, 1e9))
    assert fast.seconds == pytest.approx(usual.seconds, rel=1e-3)
    waited = parts(slow)["messages: host"]
    assert slow.seconds == pytest.approx(usual.seconds + waited, rel=1e-3) and waited > 0
    for step in (fast, slow):
        kinds, kept = step.ranks[0].memory, usual.ranks[0].memory["activations"]
        assert step.ranks[0].on_host > 0.8 * kept > 2 * kinds["activations"]
        assert kinds["parameters"] == usual.ranks[0].memory["parameters"]
    assert waited < 2 * 2 * slow.ranks[0].on_host / 1e9


def test_experts_over_ep_as_in_the_plan():
    layout = Layout(dp=8, ep=8, batch=8)
    step = simulate_step(H100, MIXTRAL, layout, traced=[0])
    planned = step_time(H100, MIXTRAL, layout)
    assert step.seconds == pytest.approx(planned.seconds, rel=0.035)
    of_layer = 4 * all_to_all_bytes(MIXTRAL, MIXTRAL.context, ep=8, itemsize=2)
    assert step.trace.bytes_sent(0, "all_to_all over ep") == MIXTRAL.num_layers * of_layer
    # each waits for its all-to-alls, and gradients beside them take the same ports
    assert planned.parts["ep messages"] < parts(step)["messages: ep"] < 0.05 * step.seconds
    of_plan, (_, kinds) = memory(H100, MIXTRAL, layout), fullest(step)
    for kind in ("parameters", "gradients", "optimizer states"):
        assert kinds[kind] == pytest.approx(of_plan[kind], rel=1e-3)


SHARED = model_of({"layers": 4, "width": 64, "heads": 4, "vocab": 64, "sequence": 32, "experts": 8,
                   "shared_experts": 1, "gated": 0})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [{"dp": 8, "ep": 8}, {"dp": 8, "ep": 4}, {"dp": 4, "ep": 2,
                         "tp": 2}, {"dp": 4, "ep": 2, "pp": 2}, {"dp": 4, "tp": 2}], ids=str)
def test_states_of_experts_are_those_of_the_plan(sizes, kind):
    """dp / ep ranks have the same; routers, shared experts and last biases are over all of dp."""
    layout = Layout(**sizes, sp=False, kind=kind, batch=8)
    planned, (_, kinds) = memory(H100, SHARED, layout), fullest(simulate_step(H100, SHARED, layout))
    whole = ["gradients"] if kind in ("ddp", "zero1") else []
    for name in ["parameters", "optimizer states", *whole]:
        assert kinds[name] == planned[name]


def test_gradients_of_experts_go_to_the_ranks_that_have_the_same():
    """Those of ep = dp to none.  The others go over all of dp."""
    whole, cut = (step_time(replace(H100, nodes=2), MIXTRAL, Layout(dp=16, ep=ep, batch=16))
                  for ep in (1, 16))
    dense = replace(MIXTRAL, experts=replace(MIXTRAL.experts, width=1))
    without = step_time(replace(H100, nodes=2), dense, Layout(dp=16, ep=16, batch=16))
    assert whole.parts["gradients"] > 5 * cut.parts["gradients"]
    assert cut.parts["gradients"] == pytest.approx(without.parts["gradients"], rel=0.01)


def test_rows_of_experts_leave_a_node_by_the_nic_of_their_own_rank():
    fabric, members = Fabric(read_cluster("2x8:h100/megatron-core")), range(16)
    alone, ring = (fabric.link(0, 8, members, axes).bandwidth for axes in (["ep"], ["dp"]))
    assert ring > 5 * alone == fabric.link(0, 8, [0, 8], ["dp"]).bandwidth * 5
    assert fabric.link(0, 1, members, ["ep"]) == fabric.link(0, 1, members, ["dp"])


def test_gradients_take_all_nics_where_dp_is_ep_alone():
    """As fast as with ep=2: a ring leaves a node by the NICs of its 4 ranks there, rows by one."""
    model = model_of({"layers": 2, "width": 512, "heads": 8, "vocab": 4096, "sequence": 512,
                      "experts": 8})
    rates = {}
    for ep in (2, 8):
        step = simulate_step(read_cluster("2x4:h100/megatron-core"), model,
                             Layout(dp=8, ep=ep, batch=8), traced=range(8), fold=False)
        for source, dest, size, label, _, started, ended in step.trace.messages:
            if source // 4 != dest // 4 and label != "control" and size > 1 << 16:
                rates[label, ep] = size / (ended - started)
    own_nic = rates["all_to_all over ep", 8]
    assert rates["all_reduce over dp", 8] == pytest.approx(rates["all_reduce over dp", 2], rel=0.1)
    assert rates["all_reduce over dp", 8] > 3 * own_nic


def test_a_bias_of_experts_takes_its_bytes_and_is_no_product():
    model = model_of({"layers": 2, "width": 1024, "heads": 8, "vocab": 512, "sequence": 2048,
                      "experts": 8, "gated": 0})
    device, rows = Device(H100, model, experts=8), ShapeArray((4096, 4096), np.float16)
    bias, weight = (ShapeArray(shape, np.float16) for shape in ((8, 4096), (8, 1024, 4096)))
    flops = rows.size
    seconds = device.seconds("GroupedLinear", "weights", flops, (rows, bias))
    by_memory = (rows.nbytes + bias.nbytes) * H100.software.unfused / (
        H100.bandwidth * H100.software.stream)
    assert seconds == pytest.approx(by_memory)
    assert device.seconds("GroupedLinear", "weights", 2048 * flops, (rows, weight)) > 2 * seconds


def run(capsys, *words):
    status = main(["simulate", "--cluster", "1x4:a100", "--batch", "8", "--sequence", "32", *words])
    return status, capsys.readouterr()


def test_the_command(tmp_path, capsys):
    model = "layers=2,width=64,heads=4,vocab=64,experts=4,top_k=2"
    status, shown = run(capsys, "--model", model, "--mesh", "ep=4", "--offload", "optimizer")
    assert status == 0 and "dp=4, ep=4, ddp, offload optimizer" in shown.out
    for name in ("messages: ep", "moving offloaded states", "in the host's memory", "used alike"):
        assert name in shown.out
    file = tmp_path / "run.toml"
    file.write_text('[model]\nlayers = 2\nwidth = 64\nheads = 4\n[experts]\nnum_experts = 4\n'
                    '[data]\nbatch = 8\n[parallel]\nmesh = "dp=4,ep=2"\n'
                    '[memory]\noffload = "optimizer"\n', encoding="utf-8")
    status, shown = run(capsys, "--config", str(file), "--vocabulary", "64")
    assert status == 0 and "dp=4, ep=2, ddp, offload optimizer, microbatch" in shown.out


@pytest.mark.parametrize("words, message", [
    (["--offload", "weights"], "offloads activations and optimizer, with a comma between them, not "
                               "'weights'"),
    (["--offload", "optimizer,"], "not ''"), (["--mesh", "dp=4,ep=3"], "ep=3 has to divide the"),
    (["--mesh", "ep=2"], "the cluster has 4 GPUs"), (["--mesh", "dp=2,ep=2,cp=2"], "leave cp out"),
    (["--config", "run.toml"], "has no probabilities by which experts drop tokens")])
def test_mistakes_are_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text('[experts]\nnum_experts = 4\ncapacity_factor = 1.0\n'
                                'drop = "probability"\n[data]\nbatch = 8\n[parallel]\n'
                                'mesh = "dp=4,ep=4"\n', encoding="utf-8")
    model = [] if "--config" in words else ["--model", "mixtral-8x7b"]
    status, shown = run(capsys, *model, *words)
    assert status == 2 and message in shown.err and len(shown.err.splitlines()) == 1
