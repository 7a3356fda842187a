"""The search: every layout is tried, those that fit are ranked, and changes are explained."""

from dataclasses import replace
from itertools import product

import pytest

from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.plan.cluster import read_cluster
from minipar.plan.layout import Layout, layout_fault, parse_layout
from minipar.plan.models import model_of, read_model
from minipar.plan.reasons import binding, changes
from minipar.plan.search import (
    best_of_meshes,
    frontier,
    layouts,
    meshes,
    other_schedules,
    predict,
    search,
)

CLUSTER = read_cluster("2x8:h100")
MODEL = read_model("8b")
BATCH = 64


@pytest.fixture(scope="module")
def found():
    return search(CLUSTER, MODEL, BATCH)


def test_every_mesh_is_tried():
    """By brute force: all factors of 16 ranks that divide heads, layers and the batch."""
    expected = {(dp, tp, pp) for dp, tp, pp in product(range(1, 17), repeat=3)
                if dp * tp * pp == 16 and 64 % dp == 0 and tp <= 32 and pp <= 32}
    assert {(e.dp, e.tp, e.pp) for e in meshes(16, MODEL, BATCH)} == expected
    long = read_model("8b", 65536)
    assert {e.cp for e in meshes(16, long, BATCH)} == {1, 2, 4, 8, 16}
    experts = model_of({"layers": 8, "width": 64, "heads": 8, "vocab": 64, "experts": 8})
    assert {e.ep for e in meshes(16, experts, BATCH)} == {1, 2, 4, 8}


def test_each_layout_can_run_and_comes_once():
    every = [*layouts(CLUSTER, MODEL, BATCH)]
    assert len(every) == len(set(every)) > 500
    assert not any(layout_fault(e, MODEL, 16) for e in every)
    for name in ("kind", "schedule", "remat", "microbatch", "v"):
        assert len({getattr(e, name) for e in every}) > 1


def test_the_fastest_meshes_meet_every_schedule(found, monkeypatch):
    """Also one that is registered later."""
    _, tried = found
    every = [*layouts(CLUSTER, MODEL, BATCH)]
    best = Layout(dp=4, pp=4, batch=BATCH, remat="full")
    others = [*other_schedules(best, MODEL)]
    assert tried > len(every)
    assert {e.schedule for e in [*others, *every]} == {*SCHEDULES}
    assert {e.remat for e in others} == {"none", "full"} and {e.num_gpus for e in others} == {16}
    assert not any(layout_fault(e, MODEL, 16) for e in others)
    assert not [*other_schedules(Layout(dp=16, batch=BATCH), MODEL)]
    monkeypatch.setitem(SCHEDULES, "mine", SCHEDULES["zb_v"])
    assert len([*other_schedules(best, MODEL)]) == len(others) + 2


def test_a_schedule_with_a_table_can_be_the_best():
    """ZB-V idles less than ZB-H1 and 1F1B, and keeps no more (Qi et al. 2023, table 2)."""
    best, _ = search(read_cluster("128x8:h100/megatron-core"), read_model("gpt3-175b"), 1536)
    mesh = [c for c in best if (c.layout.dp, c.layout.tp, c.layout.pp) == (32, 4, 8)]
    assert mesh[0].layout.schedule == "zb_v"


def test_the_fastest_that_fits_comes_first(found):
    best, tried = found
    assert 0 < len(best) < tried
    assert all(c.num_bytes <= CLUSTER.usable for c in best)
    assert [c.seconds for c in best] == sorted(c.seconds for c in best)
    for candidate in best[:20]:
        assert predict(CLUSTER, MODEL, candidate.layout) == candidate
    offloaded = [c.layout for c in best if c.layout.offload]
    assert offloaded and all(predict(CLUSTER, MODEL, replace(e, offload="")).num_bytes
                             > CLUSTER.usable for e in offloaded)
    axes = [(e.dp, e.tp, e.pp) for e in (c.layout for c in best_of_meshes(best))]
    assert len(axes) == len(set(axes))


def test_on_the_frontier_more_time_buys_memory(found):
    chosen = frontier(found[0])
    assert chosen[0] == found[0][0] and len(chosen) > 3
    for one, other in zip(chosen, chosen[1:]):
        assert one.seconds <= other.seconds and other.num_bytes < 0.95 * one.num_bytes
    smallest = min(c.num_bytes for c in found[0])
    assert smallest <= chosen[-1].num_bytes < smallest / 0.95


def test_nothing_fits_a_large_model():
    assert search(read_cluster("1x1:h100"), read_model("llama3-70b"), 8)[0] == []


def test_changes_say_why(found):
    best = found[0][0]
    made = {change.what: change for change in changes(CLUSTER, MODEL, best.layout)}
    assert len(made) > 5
    for change in made.values():
        other = predict(CLUSTER, MODEL, change.layout)
        assert (change.seconds, change.num_bytes) == (other.seconds, other.num_bytes)
        fits = other.num_bytes <= CLUSTER.usable
        assert fits == (not change.reason.startswith("does not fit"))
        assert not fits or change.seconds >= best.seconds
        assert not fits or " +" in change.reason            # a part that takes longer
    assert "memory is" in binding(CLUSTER, MODEL, best.layout, best.num_bytes)


@pytest.mark.parametrize("text, said", [
    ("dp=3", "dp·tp·pp·cp is 3, and the cluster has 16 GPUs"),
    ("dp=16,microbatch=3", "dp·microbatch is 48, which does not divide a batch of 64"),
    ("tp=16,dp=1,kind=zero", "no cost is known of the strategy 'zero'"),
    ("pp=16,v=4,schedule=interleaved", "64 stages are more than the model's 32 layers"),
    ("pp=16,v=2", "1f1b has 1 stage on each rank, not v=2"),
    ("dp=16,schedule=2f2b", "unknown schedule '2f2b': choose from gpipe"),
    ("dp=16,remat=some", "unknown remat 'some': choose from none, selective, full"),
    ("dp=16,ep=2", "ep=2 has to divide the experts and dp=16")])
def test_faults(text, said):
    layout = parse_layout(text, Layout(batch=BATCH))
    assert said in layout_fault(layout, MODEL, 16)


@pytest.mark.parametrize("text, said", [
    ("dq=2", "expected NAME=VALUE"), ("dp", "expected NAME=VALUE"),
    ("dp=two", "dp is a whole number, not 'two'"), ("dp=0", "dp is at least 1")])
def test_mistakes(text, said):
    with pytest.raises(ValueError, match=said):
        parse_layout(text, Layout())


def test_a_layout_says_what_it_is():
    text = "dp=2,tp=4,pp=2,v=2,schedule=interleaved,kind=zero1,remat=full,microbatch=2,batch=8"
    layout = parse_layout(text, Layout())
    assert str(layout) == "dp=2, tp=4, pp=2, interleaved v=2, zero1, remat full, microbatch 2"
    assert str(Layout()) == "dp=1, microbatch 1"
