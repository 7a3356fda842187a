"""Muon takes the same steps on every layout; what its exchanges of pieces send."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import MLP
from minipar.optim import SGD, AdamW
from minipar.optim.whole_tensors.exchange import Matrix, choose_owners
from minipar.optim.whole_tensors.muon import Muon
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.testing import worlds
from tests.support import cases, expert_runs, sweeps
from tests.support.cases import HYBRIDS, STRATEGIES, Case, check

SHARDED = ("zero1", "zero2", "zero3", "fsdp")
TAKE_WHOLE = ("zero1", "zero2", "fsdp")


@worlds(1, 3, 4, mpi=(3,))
@pytest.mark.parametrize("optimizer", ["muon", "muon gathered"])
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.one_in(4)
def test_every_strategy_equals_one_process(world, name, optimizer):
    """Accumulated too: DeepSpeed 8600 stepped the momentum once per microbatch."""
    check(world, name, Case(optimizer=optimizer, parts=(7, 4), max_norm=0.5))


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("name", sweeps.every(3, [
    name for name in HYBRIDS if not name.endswith("sequence") or name.startswith("dp 2 × tp")]))
@pytest.mark.one_in(6)
def test_every_mesh_equals_one_process(world, name):
    """Also boxes of tp: Megatron 7117 cut q, k and v by the rows of a shard."""
    check(world, name, Case("gpt deep tied", optimizer="muon", parts=(4, 4)))


@worlds(2, mpi=())
@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "naive"])
def test_pipelines_equal_one_process(world, name):
    check(world, name, Case("gpt deep tied", optimizer="muon", parts=(4, 4)))


@worlds(4, mpi=())
@pytest.mark.parametrize("sizes", [{"ep": 4}, {"dp": 4, "ep": 2}, {"tp": 2, "ep": 2}])
@pytest.mark.parametrize("name", ["ddp", "zero1", "fsdp"])
@pytest.mark.one_in(2)
def test_experts_equal_one_process(world, sizes, name):
    expert_runs.check(world, expert_runs.on(sizes, name), "deepseek", optimizer="muon", name=name)


@worlds(2, 3, 4, mpi=(3,))
@pytest.mark.parametrize("name", TAKE_WHOLE)
@pytest.mark.parametrize("model", ["gpt tied", "mlp"])
@pytest.mark.one_in(2)
def test_owners_of_whole_parameters_equal_one_process(world, name, model, monkeypatch):
    monkeypatch.setitem(cases.ALL, "whole", lambda model, comm: make_strategy(
        name, model, comm, whole_parameters=True))
    check(world, "whole", Case(model, optimizer="muon", parts=(7, 4)))


@worlds(3, mpi=())
@pytest.mark.parametrize("name", SHARDED)
def test_ranks_without_gradients_take_part_in_the_exchanges(world, name):
    """Muon 5bc6993: an owner without a gradient left out its part."""
    check(world, name, Case(optimizer="muon", mask="one in the whole batch", parts=(7,)))


def trained(comm, name, numbers, kept=None, **options):
    """Parameters and states of an MLP after further steps, from `kept` ones on."""
    model = MLP([4, 6, 5, 7]).initialize(0, np.float64)
    if kept:
        model.load_state_dict(kept[0])
    strategy = make_strategy(name, model, comm, **options)
    muon = Muon(strategy.slabs, 0.1)
    if kept:
        muon.load_state_dict(kept[1], numbers[0])
    for step in numbers:
        inputs, targets = Case("mlp", parts=(8,)).batch(step)
        mine = np.array(strategy.rows(8))
        muon.zero_grad()
        strategy.forward_backward([Microbatch(inputs[mine], targets[mine] % 7, mine)])
        strategy.step(muon)
    return strategy.state_dict(), muon.state_dict()


@pytest.mark.parametrize("name", SHARDED)
def test_training_goes_on_with_another_number_of_ranks(name):
    """Muon 46: the momentum of all ranks is in the checkpoint."""
    through = Cluster(1).run(lambda comm: trained(comm, "ddp", range(4)))[0][0]
    half = Cluster(3).run(lambda comm: trained(comm, name, range(2)))[0][0]
    for after in Cluster(2).run(lambda comm: trained(comm, "fsdp", range(2, 4), half))[0]:
        for found, expected in zip(after, through):
            cases.assert_all_close(found, expected, rtol=1e-9, atol=1e-12)


def sent(num_ranks, name, make, sizes=None, **options):
    """Elements that each rank sends in the step of an optimizer, of equal 64 × 64 matrices."""
    def body(comm):
        model = MLP(sizes or [64] * (num_ranks + 1)).initialize(0, np.float64)
        strategy = make_strategy(name, model, comm, **options)
        optimizer = make(strategy.slabs)
        x, label = np.ones((1, model.sizes[0])), np.array([1])
        strategy.forward_backward([Microbatch(x, label, np.array([0]))])
        comm.start_trace()
        optimizer.step()
        return comm.stop_trace().bytes_sent() // 8
    return Cluster(num_ranks).run(body)[0]


@pytest.mark.parametrize("p", [2, 4])
def test_pieces_send_what_the_formulas_say(p):
    """Each rank has a p-th of each of p matrices in ZeRO-3; the biases' AdamW sends nothing."""
    n = 64 * 64 * p
    assert sent(p, "zero3", lambda slabs: Muon(slabs)) == [2 * (p - 1) * n // p**2] * p
    assert sent(p, "zero3", lambda slabs: Muon(slabs, exchange="all_gather")) == [
        (p - 1) * n // p] * p
    assert sent(p, "zero3", AdamW) == sent(p, "ddp", lambda slabs: Muon(slabs)) == [0] * p


@pytest.mark.parametrize("name", ["zero1", "zero2"])
def test_owners_of_whole_matrices_send_nothing_of_their_own(name):
    sizes = [4, 6, 5, 7]
    assert sent(3, name, lambda slabs: Muon(slabs), sizes, whole_parameters=True) == [0, 0, 0]
    assert max(sent(3, name, lambda slabs: Muon(slabs), sizes)) > 0


@pytest.mark.parametrize("name", TAKE_WHOLE)
def test_whole_parameters_cost_as_many_bytes_as_equal_shards(name):
    """In all: one rank may send more than another."""
    def bytes_of(**options):
        def body(comm):
            model = MLP([4, 6, 5, 7]).initialize(0, np.float64)
            strategy = make_strategy(name, model, comm, **options)
            optimizer, case = SGD(strategy.slabs, 0.1), Case("mlp", parts=(6,))
            inputs, targets = case.batch(0)
            mine = np.array(strategy.rows(6))
            comm.start_trace()
            strategy.forward_backward([Microbatch(inputs[mine], targets[mine] % 7, mine)])
            strategy.step(optimizer)
            return comm.stop_trace().bytes_sent()
        return sum(Cluster(3).run(body)[0])
    assert bytes_of(whole_parameters=True) == bytes_of()


def test_every_piece_begins_with_a_parameter():
    def body(comm):
        model = MLP([4, 6, 5, 7]).initialize(0, np.float64)
        strategy = make_strategy("zero1", model, DeviceMesh(comm, dp=3), whole_parameters=True)
        return [segment.flat_range == (0, segment.stop - segment.start)
                for piece in strategy.slabs for segment in piece.segments]
    found = Cluster(3).run(body)[0]
    assert sum(map(len, found)) == 6 and all(map(all, found))


def test_who_has_most_of_a_matrix_works_on_it_and_boxes_go_by_turns():
    def owners(*lengths, size=None):
        return choose_owners([Matrix(np.empty(0), each, size or sum(each), lambda u: u)
                              for each in lengths], 3)
    assert owners((1, 7, 2), (9, 0, 1), (0, 0, 4)) == [1, 0, 2]
    assert owners((3, 3, 3), (3, 3, 3), (3, 3, 3), (4, 3, 2)) == [0, 1, 2, 0]
    assert owners((1, 7, 2), (1, 7, 2), size=20) == [0, 1]
