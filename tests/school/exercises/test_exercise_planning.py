"""Tests of the exercises on planning: memory of a layout, bubbles, links."""

from dataclasses import replace

import pytest

from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.plan.cluster import ClusterSpec, Software
from minipar.plan.layout import Layout
from minipar.plan.memory import elements, layer_bytes, rank_memory
from minipar.plan.models import model_of
from minipar.plan.time.messages import rate, ring
from minipar.plan.time.stages import cut
from minipar.plan.time.step_time import bubble_share

SOFTWARE = Software(link=0.5, nic=0.5, gradient_bytes=4, kept=0.5)
CLUSTER = ClusterSpec("", "", {"bf16": 1e15}, 8e10, 8e10, 3e12, 100, link=800e9, nic=100e9, nodes=4,
                      software=SOFTWARE)
MODEL = model_of({"layers": 12, "width": 64, "heads": 4, "vocab": 1000, "sequence": 32})


def held(rank=0, **sizes):
    """Bytes by kind, and the parameters of a rank."""
    layout = Layout(**{"batch": 48, **sizes})
    stages = cut(MODEL, layout.pp, layout.tp)
    return rank_memory(CLUSTER, MODEL, layout, stages, rank), round(stages.parameters[rank])


@pytest.mark.parametrize("sizes, shards", [
    ({"dp": 4, "pp": 2}, 4), ({"dp": 2, "cp": 2, "tp": 2}, 4), ({"dp": 4, "cp": 4}, 16)])
def test_states_of_a_layout(sizes, shards):
    for kind in ("ddp", "zero1", "zero2", "fsdp"):
        found, own = held(kind=kind, **sizes)
        parameters, gradients, states, gathered = elements(
            kind, own, 12 // sizes.get("pp", 1), shards)
        assert found["parameters"] == 2 * parameters
        assert found["gradients"] == 4 * gradients
        assert found["optimizer states"] == 12 * states
        assert found["gathered weights"] == 2 * gathered
    found, _ = held(kind="zero1", offload="optimizer", **sizes)
    assert found["optimizer states"] == 0 < found["parameters"]


def ends(microbatch):
    """Half of 4 bytes of each token and width."""
    return 0.5 * 4 * microbatch * MODEL.context * MODEL.width


@pytest.mark.parametrize("schedule, v, rank, in_flight", [
    ("1f1b", 1, 0, 4), ("1f1b", 1, 1, 3), ("1f1b", 1, 3, 1), ("gpipe", 1, 2, 24),
    ("interleaved", 3, 0, (2 * 3 + 2 * 4 + 1) / 3), ("interleaved", 3, 3, (2 * 4 + 1) / 3)])
def test_activations_in_flight(schedule, v, rank, in_flight):
    """4 ranks have 3 layers each, and 24 microbatches of 2 sequences."""
    layout = Layout(pp=4, schedule=schedule, v=v, microbatch=2, batch=48)
    found, _ = held(rank, **vars(layout))
    one = layer_bytes(CLUSTER, MODEL, layout, "none")
    assert found["activations"] == pytest.approx(3 * in_flight * one + ends(2))


def test_recomputation_keeps_one_layer():
    layout = Layout(pp=4, microbatch=2, batch=48)
    usual, _ = held(0, **vars(layout))
    found, _ = held(0, **vars(replace(layout, remat="full")))
    whole, kept = (layer_bytes(CLUSTER, MODEL, layout, remat) for remat in ("none", "full"))
    assert found["activations"] == pytest.approx(3 * 4 * kept + ends(2))
    assert found["recomputed layer"] == whole and "recomputed layer" not in usual


def test_logits_are_on_the_last_rank():
    for tp in (1, 2):
        found = [held(rank, pp=4, tp=tp, microbatch=2)[0] for rank in range(4)]
        assert found[3]["logits"] == pytest.approx(14 * 2 * MODEL.context * 1000 / tp)
        assert not any(each.get("logits") for each in found[:3])


PARTS = {"products": 9.0, "attention": 5.0, "element-wise": 1.0, "recomputation": 0.0}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_1f1b_and_gpipe_cost_a_microbatch_for_each_rank(schedule):
    for pp, m in ((2, 2), (4, 16), (8, 64)):
        assert bubble_share(Layout(pp=pp, schedule=schedule, batch=m), PARTS) == pytest.approx(1)


@pytest.mark.parametrize("schedule, v", [("interleaved", 2), ("interleaved", 4), ("zb_h1", 1)])
@pytest.mark.parametrize("again", [0.0, 5.0])
def test_the_bubble_is_that_of_the_schedule(schedule, v, again):
    """Within 1 % of what the schedule takes, with free links."""
    parts = {**PARTS, "recomputation": again}
    for pp, m in ((2, 8), (4, 16)):
        layout = Layout(pp=pp, schedule=schedule, v=v, batch=m)
        rows, placement = make_schedule(schedule, pp, m, v)
        seconds = simulate(rows, Times(5 / v, (7 + again) / v, 3 / v), placement).makespan()
        found = m + bubble_share(layout, parts) * (pp - 1)
        assert found == pytest.approx(seconds / (15 + again), rel=0.01)
        assert bubble_share(layout, parts) < 1


def test_no_pipeline_and_no_formula():
    assert bubble_share(Layout(batch=8), PARTS) == 0
    assert bubble_share(Layout(pp=8, schedule="zb_h1", batch=2), PARTS) == 1


@pytest.mark.parametrize("size, stride", [(2, 1), (8, 1), (2, 4), (4, 2)])
def test_a_ring_within_a_node(size, stride):
    assert rate(CLUSTER, size, stride) == 400e9


@pytest.mark.parametrize("size, stride, nics", [
    (16, 1, 8), (16, 2, 4), (4, 4, 2), (4, 8, 1), (2, 16, 1), (32, 1, 8)])
def test_a_ring_over_nodes_uses_the_nics_of_its_ranks(size, stride, nics):
    assert rate(CLUSTER, size, stride) == min(400e9, nics * 50e9)
    shared = replace(CLUSTER, nic_shared_by=2)
    assert rate(shared, size, stride) == nics * 25e9


def test_no_faster_than_the_link_within():
    fast = replace(CLUSTER, nic=1e12)
    assert rate(fast, 16, 1) == rate(fast, 4, 8) == 400e9


def test_which_tp_is_worth_its_messages():
    """The largest whose products, 1/tp of a second, take longer than its messages: a whole node."""
    def largest(per_node):
        cluster = replace(CLUSTER, per_node=per_node, nodes=64 // per_node, nic=25e9)
        return max(tp for tp in (1, 2, 4, 8, 16, 32) if ring(cluster, tp, 1, 1e10, 2) <= 1 / tp)
    assert [largest(per_node) for per_node in (1, 2, 4, 8, 16)] == [1, 2, 4, 8, 16]
