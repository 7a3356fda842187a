"""FSDP beside pp and tp: equal to one process, on every mesh; what is saved, counted, refused."""

from functools import partial

import numpy as np
import pytest

from minipar.autograd import Tensor, no_grad
from minipar.comm import Cluster
from minipar.memory.remat.plans import rematerialize, uniform
from minipar.nn import MLP
from minipar.nn.chain import chain
from minipar.nn.module import ChainPart
from minipar.optim import SGD, AdamW
from minipar.parallel.compare_ranks import ranks_that_differ
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.testing import worlds
from tests.parallel import test_hybrid
from tests.parallel.test_hybrid import MESHES, build, in_turn, microbatches, named, on

MESH = {"pp": 2, "dp": 2, "tp": 2}
CUT = [mesh for mesh in MESHES if mesh["dp"] > 1]
check = partial(test_hybrid.check, data_parallel="fsdp")
fsdp = partial(on, data_parallel="fsdp")


@worlds(8, mpi=())
@pytest.mark.parametrize("mesh", CUT[::2], ids=named)        # the others are slow
@pytest.mark.one_in(4)
def test_every_mesh_of_8_ranks_equals_one_process(world, mesh):
    check(world, mesh, "tied", 2, "adamw", sequence_parallel=mesh["tp"] > 1)


@pytest.mark.slow
@worlds(8, mpi=(8,))
@pytest.mark.parametrize("mesh", [*CUT, {"pp": 2, "dp": 1, "tp": 4}], ids=named)
@pytest.mark.parametrize("name", ["tied", "untied"])
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
def test_the_whole_product(world, mesh, name, sequence):
    if sequence and mesh["tp"] == 1:
        pytest.skip("one rank of tp has no sequence to split")
    check(world, mesh, name, 3, in_turn(mesh, name, sequence), sequence_parallel=sequence)


@pytest.mark.slow
@worlds(8, mpi=(8,))
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("parts", [1, 3, 6])
def test_every_schedule_with_any_number_of_microbatches(world, schedule, parts):
    if schedule == "interleaved" and parts % 2:
        pytest.skip("interleaving takes a multiple of pp")
    for mesh in (MESH, {"pp": 2, "dp": 4, "tp": 1}):
        check(world, mesh, "tied", parts, "sgd", schedule=schedule)


@worlds(4, mpi=(), slow_mpi=(4,))         # on real ranks: test_matrix.py
@pytest.mark.parametrize("mesh", [{"pp": 2, "dp": 2}, {"dp": 2, "tp": 2}], ids=named)
@pytest.mark.one_in(2)
def test_two_axes(world, mesh):
    check(world, mesh, "tied", 3)


@worlds(8, mpi=())
@pytest.mark.parametrize("schedule", ["interleaved", "zb_v"])       # the others are slow
@pytest.mark.one_in(2)
def test_schedules_with_several_stages_a_rank(world, schedule):
    check(world, MESH, "tied", 4, schedule=schedule)


@worlds(8, mpi=())
def test_stages_that_send_pieces(world):
    check(world, MESH, "tied", scatter_gather=True)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
@pytest.mark.one_in(2)
def test_blocks_that_are_computed_again(schedule):
    """Their weights are gathered for it."""
    def body(comm):
        def make(model, comm):
            return fsdp(MESH, schedule=schedule)(rematerialize(model, partial(uniform, 1)), comm)
        for what, values in test_hybrid.train(comm, "tied", make, 3).items():
            np.testing.assert_allclose(values, test_hybrid.alone("tied", "sgd")[what], rtol=1e-10,
                                       atol=1e-12, err_msg=what)
    Cluster(8).run(body)


@worlds(12, mpi=())
def test_uneven_pieces(world):
    """Three do not divide the vocabulary, the rows of a microbatch or the elements of a unit."""
    check(world, {"pp": 2, "dp": 3, "tp": 2}, "mlp")
    check(world, {"pp": 4, "dp": 3, "tp": 1}, "three heads")


def test_a_batch_is_reduced_once_and_has_no_room_for_more():
    def body(comm):
        strategy = fsdp(MESH)(build("tied"), comm)
        batches = microbatches(strategy, "tied", 0, 2)
        strategy.run_batch(batches, 10.0, 3)
        with pytest.raises(ValueError, match="reduced already, and would be again"):
            strategy.run_batch(batches, 10.0, 3)
        with pytest.raises(ValueError, match="keeps no whole gradient"), strategy.no_sync():
            pass
        for slab in strategy.slabs:
            slab.zero_grad()
            assert not slab.complete_grad().any()
        strategy.run_batch(batches, 10.0, 3)
    Cluster(8).run(body)


@pytest.mark.parametrize("mesh", MESHES, ids=named)
@pytest.mark.one_in(3)
def test_gradients_of_1_have_the_norm_of_the_number_of_parameters(mesh):
    norm = test_hybrid.MODELS["tied"]().num_parameters()**0.5

    def body(comm):
        strategy = fsdp(mesh)(build("tied"), comm)
        for slab in strategy.slabs:
            slab.add(np.ones_like(slab.grad))
        assert strategy.clip_grad_norm(1.0) == pytest.approx(norm, rel=1e-14)
        assert strategy.clip_grad_norm(1.0) == pytest.approx(1, rel=1e-5)
    Cluster(8).run(body)


def step(strategy, optimizer, number):
    optimizer.zero_grad()
    loss = strategy.forward_backward(microbatches(strategy, "tied", number, 2), 3, number)
    strategy.clip_grad_norm(0.1)
    strategy.step(optimizer)
    return loss


def test_what_was_saved_goes_on_elsewhere():
    """Whole parameters and states, saved on one mesh, loaded on others, with FSDP and without."""
    def begin(comm, mesh, name, saved=None):
        model = build("tied")
        if saved is not None:
            model.load_state_dict(saved[0])
        strategy = on(mesh, data_parallel=name)(model, comm)
        optimizer = AdamW(strategy.slabs, lr=0.01)
        if saved is not None:
            optimizer.load_state_dict(saved[1], 2)
        return strategy, optimizer

    def first(comm):
        strategy, optimizer = begin(comm, MESH, "fsdp")
        for number in range(2):
            step(strategy, optimizer, number)
        saved = strategy.state_dict(), optimizer.state_dict()
        return saved, [step(strategy, optimizer, number) for number in (2, 3)]

    def then(comm, mesh, name, saved):
        strategy, optimizer = begin(comm, mesh, name, saved)
        return [step(strategy, optimizer, number) for number in (2, 3)]
    saved, losses = Cluster(8).run(first)[0][5]
    assert saved[0].keys() == build("tied").state_dict().keys()
    for mesh, name in (({"pp": 1, "dp": 4, "tp": 2}, "fsdp"), ({"pp": 4, "dp": 2}, "fsdp"),
                       ({"dp": 1, "tp": 2}, "ddp"), ({"pp": 2, "dp": 3}, "zero1")):
        ranks = int(np.prod([*mesh.values()]))
        for found in Cluster(ranks).run(partial(then, mesh=mesh, name=name, saved=saved))[0]:
            np.testing.assert_allclose(found, losses, rtol=1e-10)


@worlds(4, mpi=(4,))
def test_a_step_is_seen_without_gradients(world):
    """Weights that were gathered outside of a step are not those after the next."""
    ids = np.arange(8).reshape(1, 8)

    def body(comm):
        model = build("untied")
        strategy = fsdp({"dp": 2, "tp": 2})(model, comm)
        optimizer = SGD(strategy.slabs, lr=0.3)
        with no_grad():
            model.logits(ids)
            before = model.logits(ids).data
        step(strategy, optimizer, 0)
        with no_grad():
            after = model.logits(ids).data
        assert np.abs(after - before).max() > 1e-3
        with pytest.raises(RuntimeError, match="gradients would be lost"):
            model.logits(ids)
        whole = build("untied")
        whole.load_state_dict(strategy.state_dict())
        with no_grad():
            np.testing.assert_allclose(after, whole.logits(ids).data, rtol=1e-10)
    world.run(body)


class Loop(MLP):
    """Two layers, used twice: at first as one part of the model, and then as two."""

    def __init__(self):
        super().__init__([5, 5, 5])

    def forward(self, x):
        for part in chain(self):
            x = part(x)
        return x


@chain.register
def _(model: Loop):
    first, _, last = model
    return [ChainPart("both", lambda x: last(first(x if isinstance(x, Tensor) else Tensor(x))),
                      [first, last]), *(ChainPart("one", one, [one]) for one in (first, last))]


def small_step(strategy, optimizer, number):
    draw = np.random.default_rng(number)
    rows = np.arange(6)[list(strategy.rows(6))]
    x, labels = draw.standard_normal((6, 5))[rows], draw.integers(0, 5, 6)[rows]
    optimizer.zero_grad()
    strategy.forward_backward([Microbatch(x, labels, rows)])
    return strategy.clip_grad_norm(0.1)


def test_weights_that_two_stages_share_but_cut_into_other_units():
    def body(comm, make):
        strategy = make(Loop().initialize(0, np.float64), comm)
        optimizer, norms = SGD(strategy.slabs, lr=0.3), []
        for number in range(3):
            norms.append(small_step(strategy, optimizer, number))
            strategy.step(optimizer)
        return strategy.state_dict() | {"norms": norms}
    ((alone,), _) = Cluster(1).run(lambda comm: body(comm, Strategy))
    for found in Cluster(6).run(lambda comm: body(comm, fsdp({"pp": 2, "dp": 3}, cuts=[1])))[0]:
        for key, values in alone.items():
            np.testing.assert_allclose(found[key], values, rtol=1e-10, err_msg=key)


def test_what_was_gathered_before_a_step_is_forgotten():
    """A model of one unit, which nothing else makes room for."""
    def body(comm):
        model, x = MLP([5, 5]).initialize(0, np.float64), np.ones((1, 5))
        strategy = fsdp({"dp": 2})(model, comm)
        optimizer = SGD(strategy.slabs, lr=0.3)
        small_step(strategy, optimizer, 0)
        with no_grad():
            before = model.logits(x).data
            strategy.step(optimizer)
            assert np.abs(model.logits(x).data - before).max() > 1e-3
    Cluster(2).run(body)


def test_tied_weights_stay_the_same_to_the_last_bit():
    def body(comm):
        strategy = fsdp({"pp": 2, "dp": 3, "tp": 2})(build("tied"), comm)
        optimizer = AdamW(strategy.slabs, lr=0.01)
        for number in range(3):
            step(strategy, optimizer, number)
        (here, shared), = strategy.stages.shared
        (piece,) = (piece for piece in strategy.slabs if piece.flat.slab is shared)
        assert not ranks_that_differ(here, piece.data.tobytes()) and piece.data.size
    Cluster(12).run(body)
