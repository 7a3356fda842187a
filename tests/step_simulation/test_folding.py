"""One rank of each class stands for all: the same times as if every rank were simulated."""

from dataclasses import replace

import numpy as np
import pytest

from minipar.comm.collectives import all_gather, all_reduce, reduce_scatter
from minipar.comm.simulated import Cluster
from minipar.comm.simulated.links import Link, Links
from minipar.nn import GPTConfig, MoEConfig, RopeConfig
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.parallel.zero.zero2 import ZeRO2
from minipar.plan.cluster import ClusterSpec, Software, read_cluster
from minipar.plan.layout import Layout
from minipar.step_simulation import simulate_step
from minipar.step_simulation.fabric import Fabric
from minipar.step_simulation.folded import FoldedCluster
from minipar.step_simulation.rank_classes import find_classes

MODEL = GPTConfig(vocab_size=64, context=16, num_layers=4, num_heads=8, width=64)
LLAMA = GPTConfig(64, 16, 4, 8, 64, num_kv_heads=4, norm="rms", mlp="swiglu", bias=False,
                  rope=RopeConfig(10000.0), tied=False)
INTERLEAVED = {"schedule": "interleaved", "v": 2}
ON_8 = "4x2:a100", {"dp": 2, "tp": 2, "pp": 2}
ON_64 = "16x4:h100/megatron-core", {"dp": 4, "tp": 4, "pp": 4}


def both(place, model=MODEL, traced=(), **options):
    """A step folded, and with all ranks."""
    name, sizes = place
    layout = Layout(**({"batch": 4 * sizes["dp"], "sp": False} | sizes | options))
    return [simulate_step(read_cluster(name), model, layout, fold=fold, traced=traced)
            for fold in (True, False)]


def check_equal(folded, whole):
    """All ranks begin and end at the same times, with the same memory."""
    assert len(folded.ranks) < len(whole.ranks) == len(folded.stands_for)
    for number, rank in whole.ranks.items():
        one = folded.ranks[folded.stands_for[number]]
        assert (one.start, one.end, one.memory) == (rank.start, rank.end, rank.memory)
        assert one.log.flops == rank.log.flops and one.log.computing == rank.log.computing


@pytest.mark.parametrize("options", [
    {}, {"kind": "zero1"}, {"sp": True, "kind": "zero1"}, {"kind": "zero2"},
    {"kind": "fsdp", "remat": "full"}, INTERLEAVED, {"kind": "zero1", "schedule": "zb_h1"}],
    ids=str)
@pytest.mark.one_in(3)
def test_8_ranks_folded_are_8_ranks_bit_for_bit(options):
    check_equal(*both(ON_8, **options))


def test_a_llama_folds_too():
    check_equal(*both(ON_8, LLAMA, kind="zero1"))


@pytest.mark.parametrize("kind", ["ddp", "zero1"])
@pytest.mark.one_in(2)
def test_64_ranks_folded_are_64_ranks_bit_for_bit(kind):
    folded, whole = both(ON_64, kind=kind)
    check_equal(folded, whole)
    assert len(folded.ranks) == 4 and sorted({*folded.stands_for}) == [0, 16, 32, 48]


@pytest.mark.parametrize("sizes, num_classes", [
    ({"dp": 4, "ep": 2, "tp": 2, "kind": "zero1"}, 1), ({"dp": 8, "ep": 4, "kind": "zero1"}, 2),
    ({"dp": 4, "ep": 4, "pp": 2}, 4)], ids=str)
@pytest.mark.one_in(3)
def test_ranks_with_experts_fold(sizes, num_classes):
    folded, whole = both(("4x2:a100", sizes), GPTConfig(64, 16, 2, 4, 64, experts=MoEConfig(4, 2)))
    check_equal(folded, whole)
    assert len(folded.ranks) == num_classes


def test_ranks_whose_experts_have_more_rows_than_others_differ():
    model = GPTConfig(64, 15, 2, 4, 64, experts=MoEConfig(4, 3))    # 11 or 12 of 45 rows each
    layout = Layout(dp=8, ep=4, batch=8, sp=False)
    assert len(simulate_step(read_cluster("8x1:a100"), model, layout).ranks) == 4


@pytest.mark.parametrize("sizes", [{"dp": 2, "tp": 2, "pp": 2}, {"dp": 4, "tp": 2, "kind": "fsdp"}],
                         ids=str)
@pytest.mark.one_in(2)
def test_ranks_that_offload_fold(sizes):
    folded, whole = both(("4x2:a100", sizes), GPTConfig(64, 256, 2, 4, 128),
                         offload="activations,optimizer")
    check_equal(folded, whole)
    for number, rank in whole.ranks.items():
        assert folded.ranks[folded.stands_for[number]].on_host == rank.on_host > 0


@pytest.mark.slow
def test_64_ranks_interleaved():
    folded, whole = both(ON_64, replace(MODEL, num_layers=8), kind="zero1", sp=True, **INTERLEAVED)
    assert folded.seconds == pytest.approx(whole.seconds, rel=0.003)


@pytest.mark.parametrize("name, sizes", [
    ("9x2:a100", {"pp": 3, "dp": 3, "tp": 2}), ("8x2:a100", {"pp": 2, "dp": 2, "cp": 2, "tp": 2})])
def test_numbers_that_are_no_powers_of_two_and_context_parallelism(name, sizes):
    odd = GPTConfig(vocab_size=66, context=48, num_layers=4, num_heads=6, width=48)
    check_equal(*both((name, sizes), odd, kind="zero1", batch=4 * sizes["dp"]))


def test_ranks_whose_axes_share_a_node_differ_little():
    """Three axes take turns at the ports within a node, in an order that ranks may see otherwise.
    """
    folded, whole = both(("1x8:a100", {"dp": 2, "tp": 2, "pp": 2}), kind="zero1")
    assert folded.seconds == pytest.approx(whole.seconds, rel=1e-3)


def test_messages_are_those_of_the_rank_that_stands_for_others():
    folded, whole = both(ON_8, kind="zero1", traced=range(8))
    for rank in folded.ranks:
        assert folded.trace.select(rank) == whole.trace.select(rank)
        assert folded.trace.bytes_sent(rank, "control") == whole.trace.bytes_sent(rank, "control")


@pytest.mark.parametrize("options", [
    {"pp": 1, "dp": 4, "kind": "zero1"}, {"kind": "ddp", **INTERLEAVED},
    {"pp": 4, "dp": 1, "kind": "ddp", "schedule": "zb_h2"},
    *[{"kind": "zero1", "schedule": name} for name in SCHEDULES if name != "interleaved"]], ids=str)
@pytest.mark.one_in(4)
def test_microbatches_that_repeat_the_first_take_what_all_would_take(options):
    layout = Layout(**{"dp": 2, "tp": 2, "pp": 2, "batch": 16, "sp": False} | options)
    repeated, computed = (simulate_step(read_cluster("4x2:a100"), MODEL, layout, repeat=repeat)
                          for repeat in (True, False))
    for number, rank in computed.ranks.items():
        one = repeated.ranks[number]
        assert (one.end, one.log.flops) == (rank.end, rank.log.flops)
        # what a repeated I leaves for W is what the first I left, which may be less
        exact = 0 if layout.schedule in ("gpipe", "1f1b", "interleaved") else 0.03
        assert sum(one.memory.values()) == pytest.approx(sum(rank.memory.values()), rel=exact)


@pytest.mark.parametrize("kind", ["fsdp", "zero2"])
@pytest.mark.parametrize("options, slow", [
    ({"dp": 8}, {}), ({"dp": 2, "cp": 2, "tp": 2, "remat": "full"}, {}),
    ({"dp": 4, "tp": 2}, {3: 1.5}), ({"dp": 8, "batch": 8 * 2}, {})], ids=str)
@pytest.mark.one_in(6)
def test_two_microbatches_that_send_stand_for_all(options, slow, kind):
    layout = Layout(**{"kind": kind, "batch": 7 * options["dp"], "sp": False} | options)
    repeated, computed = (simulate_step(read_cluster("4x2:a100"), MODEL, layout, repeat=repeat,
                                        traced=[0, 3], slow_ranks=slow) for repeat in (True, False))
    for number, rank in computed.ranks.items():
        one = repeated.ranks[number]
        assert (one.start, one.memory, one.log.flops) == (rank.start, rank.memory, rank.log.flops)
        assert one.end == pytest.approx(rank.end, rel=1e-12)
        for some, whole in (one.log.computing, rank.log.computing), (one.log.waiting,
                                                                     rank.log.waiting):
            assert some == pytest.approx(whole, rel=1e-9, abs=1e-12 * rank.end)
        assert (one.log.repeated > 0, rank.log.repeated) == (layout.microbatches > 2, 0)
    for name, first in ("spans", 2), ("messages", 4):       # of the times
        some, whole = (sorted(getattr(step.trace, name)) for step in (repeated, computed))
        assert [event[:first] for event in some] == [event[:first] for event in whole]
        np.testing.assert_allclose([event[first:] for event in some],
                                   [event[first:] for event in whole], rtol=1e-12)


def test_microbatches_of_different_lengths_are_all_computed(monkeypatch):
    finish = ZeRO2.finish

    def finish_later_and_later(strategy):
        finish(strategy)
        strategy.comm.spend("late", strategy.comm.now() * (strategy.comm.rank == 3))
    monkeypatch.setattr(ZeRO2, "finish", finish_later_and_later)
    layout = Layout(dp=8, batch=8 * 4, sp=False, kind="zero2")
    repeated, computed = (simulate_step(read_cluster("4x2:a100"), replace(MODEL, num_layers=1),
                                        layout, fold=False, repeat=repeat)
                          for repeat in (True, False))
    assert [each.end for each in repeated.ranks.values()] == [
        each.end for each in computed.ranks.values()]
    assert not any(each.log.repeated for each in repeated.ranks.values())


def test_a_slow_rank_splits_its_class():
    layout = Layout(dp=2, tp=2, pp=2, batch=16, sp=False, kind="zero1")
    cluster = read_cluster("4x2:a100")
    usual = simulate_step(cluster, MODEL, layout)
    slow, whole = (simulate_step(cluster, MODEL, layout, slow_ranks={5: 1.5}, fold=fold)
                   for fold in (True, False))
    assert len(slow.ranks) == 8 and slow.seconds == whole.seconds > usual.seconds
    busy = {rank: sum(each.log.computing.values()) for rank, each in slow.ranks.items()}
    assert max(busy, key=busy.get) == 5


def test_a_slow_link_splits_its_class():
    layout = Layout(dp=4, pp=2, batch=16, sp=False, kind="zero1")
    cluster = read_cluster("8x1:a100")
    usual, slow = (simulate_step(cluster, MODEL, layout, slow_links=links)
                   for links in ({}, {(1, 2): 20.0}))
    assert len(usual.ranks) == 2 and len(slow.ranks) == 8
    assert slow.seconds > 1.01 * usual.seconds


def test_classes_are_found():
    shape = {"pp": 2, "dp": 4, "tp": 2}
    axes = [("pp",), ("dp",), ("tp",)]

    def by_node(ranks):
        return lambda source, dest: (source // ranks != dest // ranks).astype(int)

    program = [rank // 8 for rank in range(16)]
    assert find_classes(shape, program, by_node(2), axes) == [0] * 8 + [8] * 8
    # two ranks of dp in a node: one is the first in it, the other the second
    assert find_classes(shape, program, by_node(4), axes) == [0, 0, 2, 2] * 2 + [8, 8, 10, 10] * 2
    slow = [*program]
    slow[3] = "slow"
    assert find_classes(shape, slow, by_node(2), axes) == [*range(16)]
    assert find_classes(shape, program, by_node(2), []) == [0] * 8 + [8] * 8


@pytest.mark.parametrize("collective", [all_reduce, reduce_scatter, all_gather])
def test_a_cluster_with_a_class_for_each_rank_is_the_simulated_cluster(collective):
    software = Software(link=1.0, nic=1.0, latency_rank=1e-6, latency=0.0)
    hardware = ClusterSpec("", "", {"bf16": 1e12}, 1e9, 1e9, 1e12, 1, link=1e11, nic=1e10,
                           per_node=4, nodes=2, software=software)

    def main(comm):
        for size in (800, 8, 4000):
            comm.rank_state.compute_until(comm.now() + 1e-6 * (comm.world_rank % 3))
            collective(comm, np.zeros(size), algorithm="ring")
        return comm.now()
    # of a collective of all 8 ranks, four leave each node together
    links = Links(Link(1e-6, 1e11), Link(1e-6, 4e10))
    expected = Cluster(nodes=2, devices_per_node=4, links=links).run(main)
    assert FoldedCluster(range(8), Fabric(hardware)).run(main) == expected


def test_what_cannot_run_is_said():
    cluster = read_cluster("1x8:a100")
    with pytest.raises(ValueError, match="the cluster has 8 GPUs"):
        simulate_step(cluster, MODEL, Layout(dp=4, batch=8))
    with pytest.raises(ValueError, match="does not divide the 4 heads"):
        simulate_step(cluster, GPTConfig(64, 16, 8, 4, 64), Layout(tp=8, batch=8))
    with pytest.raises(ValueError, match="there is no rank 8: the cluster has 0 … 7"):
        simulate_step(cluster, MODEL, Layout(tp=8, batch=8), slow_ranks={8: 2.0})
    with pytest.raises(ValueError, match="4,096 ranks differ, and at most 2,048"):
        simulate_step(read_cluster("512x8:a100"), MODEL, Layout(dp=512, tp=8, batch=512),
                      slow_ranks={8: 2.0})
