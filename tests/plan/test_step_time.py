"""The parts of a step: they add up, follow the sizes, and agree with minipar's other formulas."""

import math
from dataclasses import replace

import numpy as np
import pytest

from minipar.comm.simulated.links import Link
from minipar.parallel.cost.data_parallel import paper_bytes
from minipar.parallel.pipeline.schedule.metrics import in_flight
from minipar.parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.plan.cluster import read_cluster
from minipar.plan.layout import PREDICTED, Layout
from minipar.plan.minipar_formulas.step import row_ends, table_of
from minipar.plan.models import read_model
from minipar.plan.time.by_table import makespan, most_in_flight
from minipar.plan.time.kernels import attention, full_waves, linear, product
from minipar.plan.time.layer_time import layer_parts
from minipar.plan.time.messages import rate, ring
from minipar.plan.time.stages import cut, stages_of
from minipar.plan.time.stalls import stall_range
from minipar.plan.time.step_time import bubble_share, step_time

MODEL = read_model("8b")
CLUSTER = read_cluster("8x8:h100")
LAYOUT = Layout(dp=4, tp=4, pp=4, kind="zero1", microbatch=2, batch=256)
LAYOUTS = [LAYOUT, replace(LAYOUT, pp=1, dp=16), replace(LAYOUT, remat="full"),
           replace(LAYOUT, v=2, schedule="interleaved"), replace(LAYOUT, kind="fsdp", cp=2, dp=2),
           replace(LAYOUT, offload="optimizer", schedule="zb_h1")]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", ["h100", "h100/megatron-core", "a100", "a100/composer-fsdp"])
def test_parts_add_up(name, layout):
    for stalls in (False, True):
        found = step_time(read_cluster(f"8x8:{name}"), MODEL, layout, stalls)
        assert sum(found.parts.values()) == pytest.approx(found.seconds)
        assert min(found.parts.values()) >= 0


def changed(**numbers):
    """CLUSTER with other numbers, of the GPU or of its software."""
    of_gpu = {key: value for key, value in numbers.items() if key in vars(CLUSTER)}
    others = {key: value for key, value in numbers.items() if key not in of_gpu}
    return replace(CLUSTER, **of_gpu, software=replace(CLUSTER.software, **others))


@pytest.mark.parametrize("numbers", [
    {"peak": {"bf16": 1e18}}, {"bandwidth": 1e14}, {"link": 1e12}, {"nic": 1e12}, {"launch": 0.0},
    {"unfused": 1.0}, {"loss": 1.0}, {"latency": 0.0}, {"sum_bytes": 0}, {"adam_bytes": 1}],
    ids=str)
def test_better_numbers_are_never_slower(numbers):
    tried = [layout for layout in LAYOUTS if layout.schedule != "zb_h1"]    # its bubble has shares
    before = [step_time(CLUSTER, MODEL, layout).seconds for layout in tried]
    after = [step_time(changed(**numbers), MODEL, layout).seconds for layout in tried]
    assert all(new <= old * (1 + 1e-12) for new, old in zip(after, before))
    assert sum(after) < sum(before)


@pytest.mark.parametrize("name, v", [*((name, 1) for name in SCHEDULES), ("interleaved", 4)])
@pytest.mark.parametrize("m", [8, 32, 83])
def test_the_bubble_is_that_of_the_simulated_schedule(name, v, m):
    """Within 3 %, for equal stages on links that take no time."""
    layout = Layout(pp=4, v=v, schedule=name, batch=m)
    parts = {"products": 6.0, "attention": 3.0, "recomputation": 0.0}
    times = Times(3.0, 4.0, 2.0).shared(layout.stages)
    schedule, placement = make_schedule(name, 4, m, layout.stages)
    simulated = simulate(schedule, times, placement).makespan()
    seconds = 9.0 * (m + bubble_share(layout, parts) * 3)
    assert seconds == pytest.approx(simulated, rel=0.03)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in PREDICTED])
@pytest.mark.parametrize("p", [4, 6])
def test_a_table_says_of_many_microbatches_what_all_of_it_would(name, p):
    for m in (2, 3 * p, 20 * p + 3, 20 * p + 4):
        schedule, placement = make_schedule(name, p, m)
        times = Times(0.3, 0.45, 0.25)
        assert makespan(name, p, m, times) == pytest.approx(
            simulate(schedule, times, placement).makespan(), rel=1e-9)
        assert [most_in_flight(name, rank, p, m) for rank in range(p)] == [
            max(in_flight(row)) for row in schedule]


def test_both_copies_of_a_stage_add_up_their_gradients():
    """Of DDP the whole gradient, to the other copy and back; a rank has the stages of two."""
    one, two = (step_time(CLUSTER, MODEL, Layout(pp=4, schedule=name, batch=8)).parts
                for name in ("1f1b", "chimera"))
    stages = stages_of(CLUSTER, MODEL, Layout(pp=4, schedule="chimera", batch=8))
    assert one["gradients"] == 0 < two["gradients"] == pytest.approx(ring(
        CLUSTER, 2, 1, CLUSTER.software.message_bytes * max(stages.parameters), 2))
    assert sum(stages.parameters) == pytest.approx(2 * sum(cut(MODEL, 4, 1).parameters))
    assert stages.head == [0.5, 0, 0, 0.5]


def test_gradients_are_the_papers_bytes():
    """Nothing hides them here, so seconds are bytes over the slowest link."""
    for kind in ("ddp", "zero1"):
        cluster = changed(zero1_bytes=8, gather=0.0, latency=0.0)
        layout = Layout(dp=64, kind=kind, batch=64)
        own = max(cut(MODEL, 1, 1, 1, "greedy").parameters)
        sent = paper_bytes(kind, own, 64, itemsize=4)
        assert step_time(cluster, MODEL, layout).parts["gradients"] == pytest.approx(
            sent / rate(cluster, 64, 1))


def test_tensor_parallel_messages():
    """2 all-gathers and 2 reduce-scatters in each direction, 2 gathers more: 10 passes."""
    parts = layer_parts(CLUSTER, MODEL, LAYOUT)
    n = 2 * LAYOUT.microbatch * MODEL.context * MODEL.width
    expected = 10 * (n * 3 / 4 / (450e9 * 0.8) + CLUSTER.software.latency)
    assert parts["tp messages"] == pytest.approx(expected)
    without = changed(regather=False)
    assert layer_parts(without, MODEL, LAYOUT)["tp messages"] == pytest.approx(expected * 0.8)


def test_links():
    """Within a node the link; between nodes a NIC for each of the group's ranks in a node."""
    s = CLUSTER.software
    assert rate(CLUSTER, 8, 1) == 450e9 * s.link
    assert rate(CLUSTER, 8, 8) == 50e9 * s.nic
    assert rate(CLUSTER, 16, 4) == 2 * 50e9 * s.nic
    assert rate(replace(CLUSTER, nic_shared_by=4), 8, 8) == 50e9 * s.nic / 4
    assert ring(CLUSTER, 1, 1, 1e9) == 0


def test_kernels():
    large, short = (product(CLUSTER, 8192, 8192, k) for k in (8192, 64))
    assert 2 * 8192**3 / large == pytest.approx(989e12 * 0.8 * 8192 / 8320)
    assert short > large / 128                              # short sums are slow
    assert product(CLUSTER, 1, 8192, 8192) > 2 * 8192**2 / 3.35e12      # its bytes
    assert full_waves(100, 100 * 256, 128) == 1.0
    assert full_waves(100, 101 * 256, 128) < 0.7            # one tile more: a second wave
    forward, backward = linear(CLUSTER, 8192, 8192, 8192)
    assert backward == pytest.approx(2 * forward)
    fused = attention(CLUSTER, MODEL, 4096, 1)
    whole = attention(changed(flash=None), MODEL, 4096, 1)
    assert fused.both < whole.both


def test_stages():
    """Layers are dealt; the head is as costly as layers, and the last stage has fewer of them."""
    assert cut(MODEL, 4, 1).layers == [8.0] * 4
    ends = cut(read_model("llama3-405b"), 16, 8, split="ends").layers
    assert (ends[0], ends[1], ends[-1], sum(ends)) == (7, 8, 7, 126)
    greedy = cut(read_model("1b"), 8, 1, split="greedy")
    assert sum(greedy.layers) == 16 and greedy.layers[0] == 3 and greedy.head.index(1) < 8
    for split in ("even", "ends", "greedy"):
        whole = sum(cut(MODEL, 8, 4, split=split).parameters) * 4
        assert whole == pytest.approx(sum(cut(MODEL, 1, 1).parameters), rel=1e-4)


def test_stalls_are_a_range():
    usual = stall_range(CLUSTER, MODEL, LAYOUT)
    assert usual.stalled > usual.usual == usual.seconds and 0 < usual.share < 0.5
    large = stall_range(replace(CLUSTER, nodes=64), MODEL, replace(LAYOUT, dp=32))
    assert large.share > 0.9 and large.seconds == large.stalled
    full = stall_range(CLUSTER, MODEL, replace(LAYOUT, microbatch=16))
    assert full.share == 1                                  # its memory is nearly full
    ddp = stall_range(CLUSTER, MODEL, replace(LAYOUT, kind="ddp"))
    assert ddp.share > usual.share
    alone = stall_range(CLUSTER, MODEL, replace(LAYOUT, pp=1, dp=16))
    assert alone.share == 0 and alone.usual == alone.stalled
    alone = stall_range(replace(CLUSTER, nodes=64), MODEL, replace(LAYOUT, pp=1, dp=128))
    assert alone.share > 0.5 and alone.seconds == alone.stalled > alone.usual


def test_experts_cost_what_a_token_uses():
    cluster = read_cluster("1x8:h100/megatron-core")
    mixtral = read_model("mixtral-8x7b")
    whole = step_time(cluster, mixtral, Layout(dp=8, ep=8, kind="zero1", batch=64))
    assert whole.parts["ep messages"] > 0 and math.isfinite(whole.seconds)
    alone = step_time(cluster, mixtral, Layout(dp=8, kind="zero1", batch=64))
    assert alone.parts["ep messages"] == 0
    assert alone.parts["gradients"] > whole.parts["gradients"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("hop", [0.0, 0.3])
def test_ends_of_rows_are_those_of_the_simulated_table(schedule, hop):
    layout = Layout(pp=4, v=2 if SCHEDULES[schedule].any_stages else 1, schedule=schedule)
    table, placement = table_of(layout, 12)
    draw = np.random.default_rng(0).random
    times = tuple(Times(*draw(3).tolist()) for _ in placement)
    intervals = simulate(table, times, placement, Link(hop, math.inf)).intervals
    assert row_ends(layout, 12, times, hop) == [
        max(each.end for each in intervals if each.rank == rank) for rank in range(4)]
