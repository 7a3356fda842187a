"""The numbers in the answers of lessons 08 to 24 are what the code computes."""

import math
import runpy
import sys
from functools import partial

import numpy as np
import pytest

from minipar.comm import Cluster, Trace
from minipar.comm.cost.traffic import bytes_by_axis
from minipar.comm.mesh import DeviceMesh
from minipar.comm.simulated.links import Link
from minipar.compress.quantization.int_matmul import EXACT, LARGEST
from minipar.launcher import simulate
from minipar.memory.remat.plans import rematerialize, uniform
from minipar.nn import GPT, GPTConfig
from minipar.parallel.cost.activations import gpt_activations, layer_activations
from minipar.parallel.cost.data_parallel import bytes_per_step, memory_per_rank, units_of
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.pipeline.schedule.simulate import FREE_LINK, Times
from minipar.parallel.pipeline.schedule.simulate import simulate as play
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.parallel.tensor.parallelize import parallelize
from tests.lessons.test_answers import ROOT, says

sys.path.insert(0, str(ROOT / "lessons"))
from support import lesson_08, lesson_18, lesson_21


def lesson(number: str) -> dict:
    """The names that a lesson's file defines."""
    (file,) = (ROOT / "lessons").glob(f"{number}_*.py")
    return runpy.run_path(str(file))


def test_08_latency_of_rings_that_run_at_once(monkeypatch):
    names = vars(lesson_08)
    time_step, latency, full = names["time_step"], 1e-6, 8 * names["PSI"] * 3 / 4

    def cluster(num_ranks, **options):
        return Cluster(num_ranks, **{**options, "latency": latency})
    monkeypatch.setitem(time_step.__globals__, "Cluster", cluster)
    backward = time_step(1.0, None)[1]
    found = {}
    for latency in (1e-6, 1e-3):
        found[latency] = np.array([sum(time_step(full / backward, size)[:2])
                                   for size in names["SIZES_MB"]])
        assert np.argmin(found[latency]) == 2, "14 buckets are not the best"
    longer = 1e3 * (found[1e-3] - found[1e-6])
    assert np.all((longer > 3.5) & (longer < 6.5))
    assert 84e-3 + backward > 0.12


def test_10_units():
    (sizes, uses), tied = [units_of(GPT(GPTConfig(64, 32, 6, 4, 48, tied=tied)))
                           for tied in (False, True)]
    peaks = [sum(memory_per_rank("fsdp", s, 4, uses=u).values()) for s, u in ((sizes, uses), tied)]
    sent = [sum(bytes_per_step("fsdp", s, 4, uses=u)) / 4 / 3 / sum(s)
            for s, u in ((sizes, uses), tied)]
    fewer = sum(sizes) - sum(tied[0])
    says("10", f"{fewer:,} parameters fewer", f"{peaks[1]:,} bytes",
         f"{peaks[1] - peaks[0]:,} more", f"of {tied[0][0]:,} parameters",
         f"each block's, {4 * tied[0][0]:,} bytes",
         f"{fewer:,}/4 = {4 * fewer:,} bytes smaller",
         f"{sent[1]:.2f} Ψ (p − 1) elements are sent instead of {sent[0]:.2f}",
         f"{sizes[1] / sum(sizes):.2f} Ψ", f"{8 * sizes[1]:,} bytes", f"16 · {sum(sizes):,}/p",
         f"p = {int(20 * sum(sizes) / sizes[1]) / 10:g}")


def test_11_columns_that_meet_after_every_convolution():
    after_conv1, today = 128 * 14 * 14 * 8 * 8, 4 * 128 * 6 * 6 * 8 * 8 + 2 * 128 * 10 * 8
    says("11", f"{after_conv1 / 1e6:.1f} MB for", f"{4 * after_conv1 / 1e6:.1f} MB",
         f"{4 * after_conv1 + today:,} bytes")


def makespan(name: str, p: int, m: int, times: Times, v: int = 1, link: Link = FREE_LINK) -> float:
    """Of a schedule whose ranks take `times` for their v stages together."""
    schedule, placement = make_schedule(name, p, m, virtual_stages=v if v > 1 else None)
    return play(schedule, times.shared(v), placement, link, 0).makespan()


def test_12_where_ranks_idle():
    times, p, m = Times(1, 1, 1), 4, 8
    schedule, placement = make_schedule("1f1b", p, m)
    timeline = play(schedule, times, placement)
    first, *_, last = [[(i.action.kind, i.start, i.end) for i in row] for row in timeline.rows()]
    assert last[0][1] == p - 1 and timeline.makespan() - last[-1][2] == 2 * (p - 1)
    gaps = [(kind, start - end) for (_, _, end), (kind, start, _) in zip(first, first[1:])
            if start > end]
    assert gaps == [("B", 2.0 * (p - 1))] + [("B", 1.0)] * (p - 1)
    says("12", "m ≥ 19 (p − 1) = 133", "7/140")


@pytest.mark.parametrize("times", [Times(1, 1, 2), Times(2, 1, 1.5), Times(1, 3, 2),
                                   Times(3, 2, 1)])
def test_13_what_zb_h1_cannot_fill(times):
    f, i, w = times
    idle = makespan("zb_h1", 4, 8, times) - 8 * sum(times)
    assert idle == 3 * max(f + i - w, f, i)
    if times == (1, 1, 2):
        says("13", f"promises {3 * (f + i - w):g}, and the idle time is {idle:g}")


@pytest.mark.parametrize(("p", "m", "best", "loses"), [(4, 8, 3, 12), (8, 16, 4, 14)])
@pytest.mark.one_in(2)
def test_13_slow_messages(p, m, best, loses):
    found = [makespan("interleaved" if v > 1 else "1f1b", p, m, Times(), v, Link(0.1, math.inf))
             for v in range(1, loses + 1)]
    assert 1 + int(np.argmin(found)) == best
    assert 1 + next(i for i, seconds in enumerate(found) if seconds > found[0]) == loses
    if p == 4:
        says("13", f"takes {min(found):.1f} F, with 1F1B {found[0]:.1f} F", f"From v = {loses} on")


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.one_in(2)
def test_18_pp_under_sequence_parallelism(sequence_parallel):
    def main(comm):
        mesh = DeviceMesh(comm, pp=2, dp=2, tp=2)
        strategy = make_strategy("ddp", GPT(lesson_18.CONFIG).initialize(0, np.float64), mesh,
                                 sequence_parallel=sequence_parallel)
        rows = np.array(strategy.rows(lesson_18.ROWS))
        ids = np.zeros((len(rows), lesson_18.T + 1), int)
        comm.start_trace()
        strategy.forward_backward([Microbatch(ids[:, :-1], ids[:, 1:], rows)] * lesson_18.M)
        return mesh, comm.stop_trace()
    seen, _ = simulate(main, Cluster(8))
    traffic = bytes_by_axis(Trace.merged(trace for _, trace in seen), seen[0][0])
    says("18", f"{sum(traffic['pp'].values()):,}")
    tp = lesson_18.predicted(2, 2, 2)["tp"]
    if sequence_parallel:
        says("18", f"{sum(traffic['tp'].values()) - tp:,} bytes more")


def test_18_fewer_rows(monkeypatch):
    monkeypatch.setattr(lesson_18, "ROWS", 2)
    sent = lesson_18.predicted(2, 2, 2)
    says("18", f"{sent['dp']:,} bytes, tp {sent['tp']:,} and pp {sent['pp']:,}")


@pytest.mark.parametrize("nesting", [("tp", "pp", "dp"), ("dp", "pp", "tp")])
@pytest.mark.one_in(2)
def test_18_times_of_fewer_rows(monkeypatch, nesting):
    monkeypatch.setattr(lesson_18, "ROWS", 2)
    says("18", f"{1e6 * lesson_18.simulated.__wrapped__(nesting).seconds:,.0f} µs")


def test_20_long_sequences():
    config = GPTConfig(64, 512, 3, 4, 32, dropout=0.1)
    given = 4 * 512 * 32
    times = {remat: sum(layer_activations(config, 1, remat=remat).values()) / given
             for remat in ("none", "selective")}
    says("20", f"{times['none']:.1f} times", f"leaves {times['selective']:.1f} times",
         f"{2048 / 12 / 12288:.1%}".replace("%", " %"))


@pytest.mark.parametrize(("policy", "number"), [(None, 4), (partial(uniform, 1), 5)])
def test_20_all_reduces_of_full_rematerialization(policy, number):
    def count(num_layers):
        def main(comm):
            model = parallelize(GPT(GPTConfig(50, 16, num_layers, 4, 32)), comm).initialize()
            if policy:
                rematerialize(model, policy)
            comm.start_trace()
            ids = np.zeros((2, 17), int)
            model.loss(ids[:, :-1], ids[:, 1:]).backward()
            return comm.stop_trace().num_sent(label="all_reduce") // 2
        return Cluster(2).run(main)[0][0]
    assert count(3) - count(2) == number
    says("20", "5 all-reduces a block instead of 4")


def test_21_inputs_instead_of_all():
    config = GPTConfig(64, 64, 4, 4, 64, tied=False)
    inputs, saved = 4 * 8 * 64 * 64 * 4, gpt_activations(config, 8)
    says("21", f"{saved / 1e6:.1f} MB", f"{inputs / 1e6:.2f} MB")
    assert 20 < sum(layer_activations(config, 8).values()) * 4 / inputs < 21 > saved / inputs


def test_21_links_and_waiting():
    names = vars(lesson_21)
    on_link, saved = names["on_link"], gpt_activations(names["CONFIG"], names["BATCH"])
    (forward, backward, _), _ = on_link(None)
    assert 1.85 * forward < backward < 2.05 * forward

    def more(speed, ahead):
        (f, b, _), _ = on_link(Link(0.0, saved / forward * speed), ahead)
        return (f + b - forward - backward) / forward
    assert math.isclose(more(1, 0), 2) and math.isclose(more(0.25, 0), 8)
    assert more(1, 6) == 0 and 0.75 < more(0.5, 6) < 0.85 and 3.9 < more(0.25, 6) < 4.15


def test_24_exact_sums():
    says("24", f"{EXACT // LARGEST[np.dtype(np.int8)]**2:,} of them")
