"""Chimera and DualPipe: tables, idle time, and two copies of each stage that stay equal."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import MLP
from minipar.optim import SGD
from minipar.parallel.pipeline.schedule.actions import Action, Together, TwoWay, stages_on
from minipar.parallel.pipeline.schedule.advanced.dualpipe_v import dualpipe_v
from minipar.parallel.pipeline.schedule.csv import from_csv, to_csv
from minipar.parallel.pipeline.schedule.dependencies import rank_of
from minipar.parallel.pipeline.schedule.metrics import in_flight
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.pipeline.schedule.schedules import placement_of
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.parallel.pipeline.schedule.validate import find_fault
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds

EVEN = [(p, k) for p in (2, 4, 6) for k in (1, 2, 3)]


def test_two_ranks_by_hand():
    """Unit of 2 microbatches: 0 goes down, 1 goes up; each rank does both stages, a slot apart."""
    schedule, placement = make_schedule("chimera", 2, 2)
    assert to_csv(schedule) == "0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1\n"
    assert placement == [0, 1] and placement.other == {1}
    assert [rank_of(placement, stage, i) for stage in (0, 1) for i in (0, 1)] == [0, 1, 1, 0]
    assert stages_on(placement, 0) == stages_on(placement, 1) == [0, 1]


@pytest.mark.parametrize("p, k", EVEN)
def test_chimera_is_idle_as_its_paper_says(p, k):
    schedule, placement = make_schedule("chimera", p, p * k)
    assert simulate(schedule, Times(1, 1, 1), placement).makespan() == \
        3 * p * k + (k + 1) * (p - 2)
    assert simulate(schedule, Times(1, 0.5, 0.5), placement).makespan() == 2 * p * k + p - 2
    assert [max(in_flight(row)) for row in schedule] == [
        p // 2 + 1 + min(r, p - 1 - r) for r in range(p)]


@pytest.mark.parametrize("p, k", EVEN)
def test_no_two_actions_of_chimera_meet(p, k):
    """Each rank's slots: stage s of the j-th microbatch of a unit at s + 2j and 2p - 1 - s + 2j."""
    schedule, _ = make_schedule("chimera", p, p * k)
    for row in schedule:
        slots = []
        for kind, stage, i in row:
            unit, j = i // p, i % p % (p // 2)
            slots.append(2 * p * unit + 2 * j + (stage if kind == "F" else 2 * p - 1 - stage))
        assert slots == sorted(set(slots))


@pytest.mark.parametrize("p, m", [(2, 4), (2, 6), (4, 8), (4, 12), (6, 12), (8, 18)])
def test_dualpipe_is_dualpipe_v_unfolded(p, m):
    schedule, placement = make_schedule("dualpipe", p, m)
    timeline = simulate(schedule, Times(1, 1, 1), placement)
    assert timeline.makespan() == 3 * m + (p // 2 - 1) * 2
    assert {max(in_flight(row)) for row in schedule} == {p + 1}
    assert placement.other == {*range(m // 2, m)}
    for rank, row in enumerate(dualpipe_v(p // 2, m // 2)):
        for other, mirrored in ((rank, 0), (p - 1 - rank, 1)):
            half = [(a.microbatch // (m // 2)) ^ mirrored for a in schedule[other]]
            assert half == [int(a.stage >= p // 2) for a in row]
            assert [(a.kind, a.stage, a.microbatch % (m // 2)) for a in schedule[other]] == row


@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
def test_a_table_says_that_it_goes_two_ways(name):
    for p, m in ((2, 4), (4, 8), (5, 7), (4, 3)):
        schedule, placement = make_schedule(name, p, m)
        found = placement_of(from_csv(to_csv(schedule)))
        assert isinstance(found, TwoWay) and found == placement and found.other == placement.other
        assert find_fault(schedule, found, m) is None


def test_an_action_on_the_rank_of_the_other_direction_is_on_the_wrong_rank():
    schedule, placement = make_schedule("chimera", 4, 4)
    schedule[3].insert(0, schedule[0].pop(0))
    fault = find_fault(schedule, placement, 4)
    assert fault.kind == "wrong rank" and "stage 0 is on rank 0" in fault.sentence


def trained(comm, name):
    """Parameters by name on this rank after two steps, bytes of gradients, and of all."""
    model = MLP([6, 9, 8, 7, 5]).initialize(0, np.float64)
    strategy = make_strategy("ddp", model, DeviceMesh(comm, pp=comm.size), schedule=name)
    optimizer, sent = SGD(strategy.slabs, lr=0.3, momentum=0.9), 0
    for step in range(2):
        draw = np.random.default_rng(step)
        batch = [Microbatch(draw.standard_normal((2, 6)), draw.integers(0, 5, 2), np.arange(2))
                 for _ in range(8)]
        optimizer.zero_grad()
        comm.start_trace()
        strategy.forward_backward(batch)
        trace = comm.stop_trace()
        sent = sum(m.num_bytes for m in trace.select() if m.source == comm.world_rank
                   and not m.label[:1].isdigit())
        norm = strategy.clip_grad_norm(1.0)
        strategy.step(optimizer)
    own = {name: p.data.copy() for name, p in model.named_parameters() if p.initialized}
    return own, sent, norm, strategy.state_dict()


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
def test_both_copies_of_a_stage_stay_equal_to_one_process(world, name):
    one = Cluster(1).run(lambda comm: trained(comm, "1f1b"))[0][0]

    def body(comm):
        own, sent, norm, whole = trained(comm, name)
        assert len(own) == 4                        # two of four layers, weight and bias of each
        assert norm == pytest.approx(one[2], rel=1e-12)
        for key, values in own.items():
            np.testing.assert_allclose(values, one[3][key], rtol=1e-11, atol=1e-13)
        assert whole.keys() == one[3].keys()
        # all-reduced with the mirrored rank: each of two ranks sends as much as it has
        assert sent == 8 * sum(values.size for values in own.values())
    world.run(body)


def test_the_last_backwards_of_two_stages_in_one_pair():
    """A schedule of one's own: both stages' gradients are reduced, each once."""
    rows = [[Action("F", r, 0), Action("F", 3 - r, 1), Action("B", 3 - r, 1), Action("B", r, 0)]
            for r in (0, 1)]
    rows += [[Action("F", 3 - r, 1), Action("F", r, 0), Action("B", r, 0), Action("B", 3 - r, 1)]
             for r in (2, 3)]
    rows[1][2] = Together(*rows[1][2])
    own = rows, TwoWay([0, 1, 2, 3], [1])
    assert find_fault(*own, 2) is None

    def grads(comm, mesh, schedule):
        model = MLP([6, 9, 8, 7, 5]).initialize(0, np.float64)
        strategy = make_strategy("ddp", model, DeviceMesh(comm, **mesh), schedule=schedule,
                                 bucket_mb=1e-6)
        draw = np.random.default_rng(0)
        mine = list(strategy.rows(4))
        x, y = draw.standard_normal((2, 4, 6)), draw.integers(0, 5, (2, 4))
        strategy.forward_backward([Microbatch(x[i][mine], y[i][mine], np.array(mine))
                                   for i in range(2)])
        return strategy.slabs.named([slab.complete_grad() for slab in strategy.slabs])
    one = Cluster(1).run(lambda comm: grads(comm, {"pp": 1}, "1f1b"))[0][0]
    for found in Cluster(8).run(lambda comm: grads(comm, {"pp": 4, "dp": 2}, lambda m: own))[0]:
        for name in found:
            np.testing.assert_allclose(found[name], one[name], rtol=1e-11, atol=1e-13)


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
@pytest.mark.parametrize("kind", ["ddp", "zero1", "zero2", "fsdp"])
def test_batches_that_leave_a_way_unused(world, kind, name):
    """A batch of one microbatch goes one way: half of the stages see none, nor learn its shapes."""
    def norms(comm, mesh, schedule):
        model = MLP([6, 9, 8, 7, 5]).initialize(0, np.float64)
        strategy = make_strategy(kind, model, DeviceMesh(comm, **mesh), schedule=schedule)
        optimizer, found = SGD(strategy.slabs, lr=0.3), []
        for parts in (1, 2, 1, 3):
            draw = np.random.default_rng(parts)
            mine = list(strategy.rows(4))
            x, y = draw.standard_normal((parts, 4, 6)), draw.integers(0, 5, (parts, 4))
            optimizer.zero_grad()
            strategy.forward_backward([Microbatch(x[i][mine], y[i][mine], np.array(mine))
                                       for i in range(parts)])
            found.append(strategy.clip_grad_norm(1.0))
            strategy.step(optimizer)
        return found
    one = Cluster(1).run(lambda comm: norms(comm, {"pp": 1}, "1f1b"))[0][0]
    world.run(lambda comm: np.testing.assert_allclose(
        norms(comm, {"pp": 2, "dp": 2}, name), one, rtol=1e-11))
