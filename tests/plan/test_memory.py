"""Bytes: exactly what a small simulated run counts, and what was published of large ones."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.memory.ledger import Ledger
from minipar.nn import GPT, GPTConfig
from minipar.nn.step_context import training_step
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.parallel.tensor.parallelize import parallelize
from minipar.plan.cluster import read_cluster
from minipar.plan.layout import Layout
from minipar.plan.memory import GIB, memory, rank_memory, total
from minipar.plan.models import read_model
from minipar.plan.time.stages import cut, stages_of
from minipar.testing import worlds
from tests.support.measured_step import TIME, recorded

CONFIG = GPTConfig(24, context=TIME, num_layers=3, num_heads=2, width=24)
STATES = ("parameters", "gradients", "optimizer states")
ROWS = 2                # of each rank, in tests.support.measured_step


@worlds(2, mpi=(), slow=(3, 4))
@pytest.mark.parametrize("kind", ["ddp", "zero1"])
def test_states_are_what_the_ledger_counts(world, kind):
    layout = Layout(dp=world.size, kind=kind, microbatch=ROWS, batch=ROWS * world.size)
    expected = memory(read_cluster(f"1x{world.size}:cpu_core"), CONFIG, layout)

    def body(comm):
        found = recorded(comm, kind, CONFIG)
        if comm.rank == 0:              # which has the largest piece
            assert {name: found.peak_of[name] for name in STATES} == {
                name: expected[name] for name in STATES}
    world.run(body)


@pytest.mark.parametrize("tp, sp", [(1, False), (2, True), (2, False)])
def test_activations_are_what_the_ledger_counts(tp, sp):
    """Those of all layers; on one rank also those of the ends."""
    layout = Layout(tp=tp, sp=sp, microbatch=ROWS, batch=ROWS)

    def kept(num_layers):
        def body(comm):
            model = GPT(GPTConfig(24, context=TIME, num_layers=num_layers, num_heads=2, width=24))
            if tp > 1:
                parallelize(model, comm, sequence_parallel=sp)
            model.initialize(0)
            ledger, ids = Ledger(model.parameters()), np.zeros((ROWS, TIME), int)
            with ledger.recording(), training_step(0, 0, range(ROWS)):
                loss = model.loss(ids, ids)
            live = ledger.live
            loss.backward()
            return live
        config = GPTConfig(24, context=TIME, num_layers=num_layers, num_heads=2, width=24)
        expected = memory(read_cluster(f"1x{tp}:cpu_core"), config, layout)
        return Cluster(tp).run(body)[0][0], expected["activations"] + expected["logits"]

    (three, of_three), (two, of_two) = kept(3), kept(2)
    assert three - two == of_three - of_two
    if tp == 1:
        assert three == of_three


# Korthikanti et al. 2022, figure 1, GiB: parameters and optimizer, and activations with sequence
# parallelism and selective recomputation; states are without the embedding, which is on the first
# rank.  (model, pp, v, microbatches, states, activations)
FIGURE_1 = [("gpt3-22b", 1, 1, 1, 45.56, 9.56), ("gpt3-175b", 8, 3, 64, 45.56, 12.35),
            ("gpt3-530b", 35, 3, 280, 31.64, 23.08), ("gpt3-1t", 64, 1, 512, 32.96, 26.56)]


@pytest.mark.parametrize("name, pp, v, m, states, activations", FIGURE_1)
def test_published_memory(name, pp, v, m, states, activations):
    microbatch = 4 if name == "gpt3-22b" else 1
    layout = Layout(tp=8, pp=pp, v=v, schedule="interleaved" if v > 1 else "1f1b",
                    microbatch=microbatch, batch=m * microbatch, remat="selective")
    cluster = read_cluster(f"{pp}x8:a100/megatron-2022")
    model = read_model(name)
    stages = cut(model, pp, 8)
    first, middle = (rank_memory(cluster, model, layout, stages, rank) for rank in (0, pp // 2))
    assert sum(middle[kind] for kind in STATES) / GIB == pytest.approx(states, rel=0.03)
    assert first["activations"] / GIB == pytest.approx(activations, rel=0.06)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["h100", "h100/llama3", "a100"])
def test_no_rank_needs_more_than_the_fullest(name, schedule):
    for model in map(read_model, ("1b", "llama3-70b", "gpt3-22b")):
        for pp, m in ((2, 1), (4, 2), (8, 8), (16, 4), (16, 64)):
            layout = Layout(pp=pp, schedule=schedule, microbatch=2, batch=2 * m)
            cluster = read_cluster(f"2x8:{name}")
            stages = stages_of(cluster, model, layout)
            assert sum(memory(cluster, model, layout).values()) == max(
                sum(rank_memory(cluster, model, layout, stages, rank).values())
                for rank in range(pp))


def test_what_saves_memory_does():
    cluster, model = read_cluster("8x8:h100"), read_model("8b")
    base = Layout(dp=8, tp=8, microbatch=2, batch=64, kind="ddp")

    def size(**changes):
        return total(cluster, memory(cluster, model, Layout(**vars(base) | changes)))
    by_kind = [size(kind=kind) for kind in ("ddp", "zero1", "zero2", "fsdp")]
    assert sorted(by_kind, reverse=True) == by_kind
    assert size(remat="full") < size() > size(offload="optimizer")
    assert size(sp=False) > size() > size(microbatch=1)
    assert size(dp=4, pp=2, batch=64) < size()
