"""2D and 3D: every mesh equals one process, in losses, norms, parameters and optimizer states."""

import re
from functools import cache, partial

import numpy as np
import pytest

from minipar.autograd import IGNORE_INDEX
from minipar.comm import Cluster
from minipar.comm.mesh import DeviceMesh
from minipar.nn import GPT, MLP, GPTConfig, RopeConfig
from minipar.optim import NO_DECAY_FOR_VECTORS, SGD, AdamW
from minipar.parallel.compare_ranks import ranks_that_differ
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch, Strategy
from minipar.testing import worlds
from tests.support.cases import assert_all_close

VOCABULARY, TIME, ROWS = 11, 8, 12


def gpt(**changes):
    sizes = {"context": TIME, "num_layers": 6, "num_heads": 8, "width": 16, "dropout": 0.2}
    return lambda: GPT(GPTConfig(VOCABULARY, **sizes | changes))


MODELS = {"tied": gpt(), "untied": gpt(tied=False), "three heads": gpt(num_heads=3, width=12),
          "llama": gpt(norm="rms", mlp="swiglu", num_kv_heads=4, rope=RopeConfig(), bias=False),
          "mlp": lambda: MLP([4, 7, 5, 6, 7, 8, 5, 6, VOCABULARY], dropout=0.3)}
MESHES = [{"pp": pp, "dp": dp, "tp": 8 // pp // dp} for pp in (1, 2, 4, 8) for dp in (1, 2, 4, 8)
          if 8 % (pp * dp) == 0]
OPTIMIZERS = {"sgd": lambda slabs: SGD(slabs, lr=0.3, momentum=0.9),
              "adamw": lambda slabs: AdamW(slabs, lr=0.01, weight_decay=0.3,
                                           groups=[NO_DECAY_FOR_VECTORS])}


def on(mesh, data_parallel="ddp", **options):
    """Makes the strategy for such a mesh."""
    return lambda model, comm: make_strategy(data_parallel, model, DeviceMesh(comm, **mesh),
                                             **options)


def build(name):
    return MODELS[name]().initialize(0, np.float64)


def microbatches(strategy, name, step, parts):
    """Uneven masks; the batch is cut into microbatches, and these over dp, with remainders."""
    draw = np.random.default_rng(step)
    targets = draw.integers(0, VOCABULARY, (ROWS, TIME))
    targets[draw.random(targets.shape) < 0.5] = IGNORE_INDEX
    inputs = draw.integers(0, VOCABULARY, (ROWS, TIME))
    if name == "mlp":
        inputs, targets = draw.standard_normal((ROWS, 4)), targets[:, 0]
    found = []
    for part in np.array_split(np.arange(ROWS), parts):
        rows = part[list(strategy.rows(len(part)))]
        found.append(Microbatch(inputs[rows], targets[rows], rows))
    return found


def train(comm, name, make=Strategy, parts=1, optimizer="sgd"):
    """Two steps: losses, norms, and at the end parameters and the optimizer's states, which for SGD
    are gradients."""
    strategy = make(build(name), comm)
    stepper, found = OPTIMIZERS[optimizer](strategy.slabs), {}
    for step in range(2):
        stepper.zero_grad()
        found[f"loss {step}"] = strategy.forward_backward(
            microbatches(strategy, name, step, parts), 3, step)
        found[f"norm {step}"] = strategy.clip_grad_norm(0.1)
        strategy.step(stepper)
    return found | strategy.state_dict() | stepper.state_dict()


@cache
def alone(name, optimizer):
    return Cluster(1).run(lambda comm: train(comm, name, optimizer=optimizer))[0][0]


def check(world, mesh, name="tied", parts=2, optimizer="sgd", **options):
    expected = alone(name, optimizer)

    def body(comm):
        found = train(comm, name, on(mesh, **options), parts, optimizer)
        assert_all_close(found, expected, rtol=1e-10, atol=1e-12)
    world.run(body)


def in_turn(mesh, name, sequence):
    """Every mesh has each optimizer, and every model, with and without sequence parallelism."""
    return [*OPTIMIZERS][(MESHES.index(mesh) + (name == "tied") + sequence) % 2]


def named(mesh):
    return "-".join(f"{axis}{size}" for axis, size in mesh.items())


@worlds(8, mpi=())
def test_a_llama(world):
    check(world, {"pp": 2, "dp": 2, "tp": 2}, "llama", sequence_parallel=True)


@worlds(8, mpi=())
@pytest.mark.parametrize("mesh", MESHES, ids=named)
@pytest.mark.one_in(5)
def test_every_mesh_of_8_ranks_equals_one_process(world, mesh):
    """In turn with tied weights and all that is sharded, and plain; the slow product has both."""
    if MESHES.index(mesh) % 4 < 2:
        check(world, mesh, "tied", data_parallel="zero1", sequence_parallel=mesh["tp"] > 1)
    else:
        check(world, mesh, "untied")


@pytest.mark.slow
@worlds(8, mpi=(8,))
@pytest.mark.parametrize("mesh", MESHES, ids=named)
@pytest.mark.parametrize("name", ["tied", "untied"])
@pytest.mark.parametrize("data_parallel", ["ddp", "zero1"])
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
def test_the_whole_product(world, mesh, name, data_parallel, sequence):
    if sequence and mesh["tp"] == 1:
        pytest.skip("one rank of tp has no sequence to split")
    check(world, mesh, name, 3, in_turn(mesh, name, sequence), data_parallel=data_parallel,
          sequence_parallel=sequence)


@worlds(4, mpi=(), slow_mpi=(4,))         # on real ranks: test_matrix.py
@pytest.mark.parametrize("data_parallel", ["ddp", "zero1"])
@pytest.mark.parametrize("mesh", [{"pp": 2, "tp": 2}, {"pp": 2, "dp": 2}, {"dp": 2, "tp": 2}],
                         ids=named)
@pytest.mark.one_in(2)
def test_two_axes(world, mesh, data_parallel):
    check(world, mesh, data_parallel=data_parallel)


# The others are slow: 1F1B is on every mesh above, and test_matrix.py has each in a pipeline alone.
WITH_SEVERAL_STAGES_OR_W = ("interleaved", "zb_h1", "zb_v")


@worlds(8, mpi=())
@pytest.mark.parametrize("schedule", [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in WITH_SEVERAL_STAGES_OR_W))
    for name in SCHEDULES])
@pytest.mark.one_in(4)
def test_every_schedule(world, schedule):
    check(world, {"pp": 2, "dp": 2, "tp": 2}, parts=4, schedule=schedule, sequence_parallel=True)


@worlds(8, mpi=())
@pytest.mark.parametrize("mesh", [{"pp": 2, "dp": 2, "tp": 2}, {"pp": 4, "dp": 1, "tp": 2}],
                         ids=named)
def test_an_mlp_cut_in_the_middle_of_a_pair(world, mesh):
    check(world, mesh, "mlp", data_parallel="zero1")


@worlds(12, mpi=())
@pytest.mark.parametrize("data_parallel", ["ddp", "zero1"])
@pytest.mark.one_in(2)
def test_uneven_pieces(world, data_parallel):
    """Three do not divide the vocabulary, the rows of a microbatch or the elements of a slab."""
    check(world, {"pp": 2, "dp": 2, "tp": 3}, "three heads", data_parallel=data_parallel)
    check(world, {"pp": 4, "dp": 3, "tp": 1}, "three heads", data_parallel=data_parallel)


@worlds(mpi=(), slow=(32,))
def test_32_ranks(world):
    mesh = {"dp": 2, "tp": 4, "pp": 4}
    check(world, mesh, "tied", data_parallel="zero1", sequence_parallel=True)
    check(world, mesh, "untied")


@worlds(12, mpi=())
@pytest.mark.parametrize("data_parallel", ["ddp", "zero1"])
@pytest.mark.one_in(2)
def test_what_several_ranks_hold_stays_the_same_to_the_last_bit(world, data_parallel):
    """Ranks of one stage and tp rank, and the first and last stage with their tied weight."""
    def body(comm):
        strategy = on({"pp": 2, "dp": 3, "tp": 2}, data_parallel=data_parallel)(build("tied"), comm)
        stepper = AdamW(strategy.slabs, lr=0.01)
        for step in range(3):
            stepper.zero_grad()
            strategy.forward_backward(microbatches(strategy, "tied", step, 2), 3, step)
            strategy.step(stepper)
        mesh = strategy.mesh
        for slab in strategy.stages.whole_slabs:
            assert not ranks_that_differ(mesh["dp"], slab.data.tobytes())
            if slab.tp is None:
                assert not ranks_that_differ(mesh["dp", "tp"], slab.data.tobytes())
        tied = strategy.model.wte.weight.data
        assert not ranks_that_differ(mesh["pp", "dp"], tied.tobytes())
    world.run(body)


@worlds(8, mpi=())
@pytest.mark.parametrize("data_parallel", ["ddp", "zero1"])
@pytest.mark.parametrize("mesh", MESHES, ids=named)
@pytest.mark.one_in(3)
def test_gradients_of_1_have_the_norm_of_the_number_of_parameters(world, mesh, data_parallel):
    norm = MODELS["tied"]().num_parameters()**0.5

    def body(comm):
        strategy = on(mesh, data_parallel=data_parallel)(build("tied"), comm)
        for slab in strategy.slabs:
            if data_parallel != "ddp":
                slab.has_grad = True
            slab.complete_grad()[...] = 1
        assert strategy.clip_grad_norm(1.0) == pytest.approx(norm, rel=1e-14)
        assert strategy.clip_grad_norm(1.0) == pytest.approx(1, rel=1e-5)
    world.run(body)


def test_zero_1_shards_the_optimizer_states():
    def elements(comm, data_parallel):
        strategy = on({"pp": 2, "dp": 2, "tp": 2}, data_parallel=data_parallel)(build("tied"), comm)
        return sum(state.size for states in AdamW(strategy.slabs, lr=0.1).states
                   for state in states.values())
    whole, sharded = (Cluster(8).run(partial(elements, data_parallel=name))[0]
                      for name in ("ddp", "zero1"))
    assert sum(whole) == 2 * sum(sharded)


def test_gradients_add_up_inside_no_sync_and_never_after():
    def body(comm, by_hand):
        strategy = on({"pp": 2, "dp": 2, "tp": 2})(build("tied"), comm)
        batches = microbatches(strategy, "tied", 0, 4)
        if by_hand:
            with strategy.no_sync():
                strategy.run_batch(batches[:3], 10.0, 3)
            with pytest.raises(ValueError, match="those of this rank alone.*outside no_sync"):
                strategy.step(SGD(strategy.slabs, lr=0.1))
        strategy.run_batch(batches[3:] if by_hand else batches, 10.0, 3)
        found = [slab.grad.copy() for slab in strategy.slabs]
        with pytest.raises(ValueError, match="reduced already, and would be again"):
            strategy.run_batch(batches, 10.0, 3)
        return found
    at_once, by_hand = (Cluster(8).run(partial(body, by_hand=b))[0] for b in (False, True))
    for one, other in zip(at_once, by_hand):
        for a, b in zip(one, other):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("mesh", "options", "sentence"), [
    ({"dp": 2, "tp": 2}, {"data_parallel": "dp"}, "dp is over all ranks, with no other axis"),
    ({"dp": 2, "ring": 2, "order": ("dp", "ring")}, {}, "replicate, dp, cp and tp, not ring"),
    ({"pp": 4}, {"sequence_parallel": True}, "only one: leave it off, or give the mesh tp=2"),
    ({"pp": 4}, {"schedule": "2f2b"}, "unknown schedule '2f2b': choose from gpipe"),
    ({"pp": 4}, {"schedule": "looped_breadth_first", "virtual_stages": 3},
     "a model of 8 parts has 1 to 8 stages, not 12"),
    ({"dp": 1, "tp": 4}, {"name": "three heads"}, "do not divide over 4 ranks: choose tp of 1, 3"),
    ({"dp": 2, "tp": 2}, {"name": "mlp", "sequence_parallel": True}, "an MLP has no sequence"),
])
def test_what_does_not_go_together_is_refused(mesh, options, sentence):
    name, options = options.get("name", "tied"), {k: v for k, v in options.items() if k != "name"}
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Cluster(4).run(lambda comm: on(mesh, **options)(build(name), comm))
