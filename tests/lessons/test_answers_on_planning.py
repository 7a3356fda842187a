"""The answers of lessons 27 and 28 say what the planner and the simulator find."""

import runpy
import sys
from math import ceil
from types import SimpleNamespace

import pytest

from minipar.plan.models import num_parameters
from tests.lessons.test_answers import ROOT, says


@pytest.fixture
def planner(monkeypatch):
    """Lesson 27's functions; its Llama, and 64 cards."""
    monkeypatch.syspath_prepend(ROOT / "lessons")
    monkeypatch.setattr(sys, "argv", ["lesson"])
    from support import lesson_27
    own = SimpleNamespace(**runpy.run_path(str(ROOT / "lessons" / "27_planner.py")))
    return SimpleNamespace(own=own, model=lesson_27.llama(own), support=lesson_27,
                           cluster=lesson_27.cluster_of(own, 64))


def seconds_of(planner, *sizes):
    return planner.own.seconds(planner.model, planner.cluster, planner.own.Layout(*sizes), 512)


def test_27_data_parallelism_alone(planner):
    own, model = planner.own, planner.model
    every = own.layouts(model, 64, 512)
    fastest = min(every, key=lambda e: own.seconds(model, planner.cluster, e, 512))
    assert fastest[:3] == (64, 1, 1) and fastest not in own.plan(model, planner.cluster, 512)
    kinds = own.memory(model, own.Layout(64, 1, 1, 1), 512)
    weights = model.blocks * model.weights
    says("27", f"It would take {seconds_of(planner, *fastest):.1f} s",
         f"{(kinds['parameters'] + kinds['gradients']) / 1e9:.0f} GB",
         f"to {16 * weights / 64 / 1e9:.0f} GB a card",
         f"activations of one sequence, {kinds['activations'] / 1e9:.0f} GB")


def test_27_the_order_of_simulated_steps(planner):
    """Planned seconds are within 20 % of a simulated cluster's, and order the layouts alike."""
    own, s = planner.own, planner.support
    model = own.Model(s.BLOCKS, 2 * s.WIDTH**2, s.WIDTH, 1, s.SIZE, (8, 8, 16), (8, 8))
    cluster = own.Cluster(8, 8, s.FLOPS, 1e12, s.ALPHA, s.RATE, s.RATE)
    every = [e for e in own.layouts(model, 8, s.SAMPLES) if e.b == 4]
    planned = [own.seconds(model, cluster, e, s.SAMPLES) for e in every]
    simulated = [s.simulated_seconds(e) for e in every]
    assert len(every) == 10 and s.rank_correlation(planned, simulated) == pytest.approx(1, abs=0.02)
    assert all(0.9 < found / seconds < 1.2 for found, seconds in zip(simulated, planned))


def test_27_tensor_parallelism_across_nodes(planner):
    own, model, cluster = planner.own, planner.model, planner.cluster
    n = own.sizes(model, own.Layout(1, 8, 8, 1), 512)[2]
    wide, narrow = (own.all_reduce(cluster, tp, 1, n) * 1e3 for tp in (16, 8))
    products = 6 * model.blocks * model.weights / 64 * 4096 / cluster.flops * 1e3
    says("27", f"takes {seconds_of(planner, 1, 16, 4, 1):.1f} s instead of "
         f"{seconds_of(planner, 1, 8, 8, 1):.1f} s", f"{products:.0f} ms a microbatch",
         f"{2 * model.blocks // 4} sums of activations instead of {2 * model.blocks // 8}",
         f"{wide:.2f} ms instead of {narrow:.2f} ms")


def test_27_what_to_rent(planner):
    hours = {name: planner.support.hours(planner.own, 64, name)[2] for name in ("A100", "H100")}
    says("27", f"take {hours['A100']:.0f} hours of an A100 and {hours['H100']:.0f} of an H100",
         f"less than {hours['H100'] / hours['A100']:.0%}".replace("%", " %"))
    found = {cards: planner.support.hours(planner.own, cards, "H100")[2] for cards in
             (32, 64, 128, 256, 512)}
    assert min(found, key=found.get) == 64
    assert planner.support.hours(planner.own, 16, "H100") is None


def test_27_the_list(planner):
    own, model, cluster = planner.own, planner.model, planner.cluster
    found = own.plan(model, cluster, 512)
    fastest, slowest = (own.seconds(model, cluster, found[i], 512) for i in (0, -1))
    every = num_parameters(planner.support.LLAMA)
    says("27", f"{len(own.layouts(model, 64, 512))} on 64 cards", f"{len(found)} fit",
         f"{slowest / fastest:.1f} times as slow", f"`tp = {found[0].tp}, pp = {found[0].pp}`",
         f"16 bytes of {every / 1e9:.1f} billion weights are {16 * every / 1e9:,.0f} GB",
         f"{ceil(16 * every / 80e9)} cards")


@pytest.fixture
def simulator(monkeypatch):
    """Lesson 28's functions."""
    monkeypatch.syspath_prepend(ROOT / "lessons")
    monkeypatch.setattr(sys, "argv", ["lesson"])
    return SimpleNamespace(**runpy.run_path(str(ROOT / "lessons" / "28_ten_thousand_ranks.py")))


def in_node(i, j):
    return i // 4 == j // 4


def test_28_events_of_a_ring(simulator):
    p, told = 8, []

    def listening(program):
        answer = None
        while True:
            try:
                event = program.send(answer)
            except StopIteration:
                return
            told.append(event)
            answer = yield event
    simulator.simulate({i: listening(simulator.ring(i, range(p), p)) for i in range(p)},
                       lambda i, j: (1.0, 1.0), range(p))
    rounds, own = 2 * (p - 1), 4 * 2 * 10_239
    assert len(told) == 4 * rounds * p
    says("28", "Of 20,478 rounds", f"{own:,} events a rank: {4 * own:,} for the four",
         f"{round(10_240 * own / 1e6)} million for all")


def test_28_a_late_rank(simulator):
    def around(i):
        return (i + 1) % 64, (i - 1) % 64
    assert len({*simulator.classes([0] * 64, around, in_node)}) == 4
    assert len({*simulator.classes([1, *[0] * 63], around, in_node)}) == 64
    says("28", "All 64. Its neighbours differ")


def test_28_a_link_of_the_ring(simulator):
    from support import lesson_28
    rows, _ = lesson_28.break_symmetry(simulator.simulate, simulator.classes, simulator.ring)
    longer = {name: cells[-1] for name, *cells in rows}[
        "one link of a ring at a quarter of its rate"]
    says("28", f"step of 8 × 32 ranks {longer[1:-1]} %")
