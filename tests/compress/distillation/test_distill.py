"""Distillation with every strategy is that of one process; projections; who learns from whom."""

from functools import cache, partial

import numpy as np
import pytest

from minipar.autograd import no_grad
from minipar.comm import Cluster
from minipar.compress.distillation.distill import (
    PROJECTIONS,
    AveragedTeacher,
    Distillation,
    LocalTeacher,
    make_recipe,
    without_projections,
)
from minipar.compress.distillation.feature_taps import hidden_parts, run_with_taps
from minipar.nn import GPT, MLP, GPTConfig
from minipar.nn.step_context import training_step
from minipar.optim import SGD, AdamW
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.parallel.tensor.parallelize import parallelize
from minipar.testing.worlds import worlds
from tests.support.cases import ALL, ONE_PROCESS

V, T, B = 11, 6, 6
PLAIN = partial(SGD, lr=0.2)
EVERYTHING = {"temperature": 3.0, "alpha": 0.6, "hidden": 0.5, "attention": 2.0}


def gpt(num_layers=2, width=8, heads=2, **changes):
    return GPT(GPTConfig(V, T, num_layers, heads, width, **changes))


def teacher_model(dropout=0.0):
    return gpt(4, 12, 4, dropout=dropout).initialize(7, np.float64)


def taught(student=None, weights=None, teacher=None):
    """A student, of another width, depth and number of heads, with its teacher and projections."""
    student, teacher = student or gpt(dropout=0.2), teacher or teacher_model(0.3)
    recipe = make_recipe(student, teacher, **EVERYTHING if weights is None else weights)
    return Distillation(student, LocalTeacher(teacher, recipe), recipe).initialize(3, np.float64)


def batches(rows_of, step):
    """Two microbatches; a third of the targets does not count, of one sample none does."""
    draw = np.random.default_rng(step)
    ids, targets = draw.integers(0, V, (2, B, T)), draw.integers(0, V, (2, B, T))
    targets[draw.random(targets.shape) < 0.3] = -100
    targets[:, 0] = -100
    rows = slice(rows_of(B).start, rows_of(B).stop)
    return [Microbatch(ids[i, rows], targets[i, rows], 2 * B * step + B * i + np.arange(B)[rows])
            for i in range(2)]


def train(comm, name, make=taught, optimizer=PLAIN, num_steps=2, begin=0):
    """(losses, parameters, states of the optimizer) after some steps."""
    tuned, losses = optimizer((strategy := ALL[name](make(), comm)).slabs), []
    for step in range(begin, begin + num_steps):
        tuned.zero_grad()
        losses.append(strategy.forward_backward(batches(strategy.rows, step), 0, step))
        strategy.clip_grad_norm(0.5)
        strategy.step(tuned)
    return losses, strategy.state_dict(), tuned.state_dict()


@cache
def alone(optimizer=PLAIN):
    return Cluster(1).run(partial(train, name="ddp", optimizer=optimizer))[0][0]


@worlds(2, mpi=(4,))
@pytest.mark.parametrize("name", [name for name in ONE_PROCESS if name != "dp"])
@pytest.mark.one_in(2)
def test_on_several_ranks_it_is_that_of_one_process(world, name):
    expected = alone()

    def body(comm):
        losses, state, _ = train(comm, name)
        np.testing.assert_allclose(losses, expected[0], rtol=1e-10)
        assert state.keys() == expected[1].keys()
        for key, array in expected[1].items():
            np.testing.assert_allclose(state[key], array, rtol=1e-10, atol=1e-12, err_msg=key)
    world.run(body)


def test_the_classic_form_is_refused_rather_than_trained_without_a_teacher():
    with pytest.raises(ValueError, match="train with any strategy but dp"):
        Cluster(2).run(partial(train, name="dp"))


def test_tensor_and_pipeline_parallel_students_are_refused():
    def body(comm):
        with pytest.raises(ValueError, match="takes a plain MLP or GPT, not Distillation"):
            parallelize(taught(), comm)
    Cluster(2).run(body)


def test_projections_have_names_are_trained_and_are_dropped():
    state, states = alone(partial(AdamW, lr=0.01))[1:]
    ours = [name for name in state if name.startswith(PROJECTIONS)]
    assert ours == ["projections.0.weight", "projections.1.weight"]
    assert all(state[name].shape == (8, 12) for name in ours)
    first = taught().state_dict()
    assert all(np.abs(state[name] - first[name]).max() > 1e-3 for name in ours)
    plain = gpt().initialize(0, np.float64)
    plain.load_state_dict(without_projections(state))
    kept = without_projections(states)
    assert len(kept) == 2 * len(plain.state_dict()) == len(states) - 4


def test_a_student_begins_as_it_would_alone():
    alone, begun = gpt().initialize(3, np.float64).state_dict(), taught().state_dict()
    assert all(np.array_equal(begun[name], array) for name, array in alone.items())


def test_a_checkpoint_goes_on_with_other_ranks_and_another_strategy():
    optimizer = partial(AdamW, lr=0.01)
    expected = Cluster(1).run(partial(train, name="ddp", optimizer=optimizer, num_steps=4))[0][0]
    _, state, states = Cluster(3).run(partial(train, name="zero1", optimizer=optimizer))[0][0]

    def make():
        model = taught()
        model.load_state_dict(state)
        return model

    def resumed(slabs):
        tuned = optimizer(slabs)
        tuned.load_state_dict(states, 2)
        return tuned
    found = Cluster(2).run(partial(train, name="fsdp", make=make, optimizer=resumed, begin=2))[0][0]
    np.testing.assert_allclose(found[0], expected[0][2:], rtol=1e-10)
    for name, array in expected[1].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-9, atol=1e-12, err_msg=name)


def test_no_soft_targets_is_ordinary_training():
    batch = batches(range, 0)[0]
    model = taught(gpt(), {"alpha": 0.0})
    expected = gpt().initialize(3, np.float64).loss(batch.inputs, batch.targets)
    assert model.loss(batch.inputs, batch.targets).item() == expected.item()
    assert not len(model.projections)


def test_a_student_equal_to_its_teacher_has_nothing_to_learn():
    """Of a layer of the same width there is no projection: even the hidden layers agree."""
    teacher = teacher_model()
    student = gpt(4, 12, 4)
    model = taught(student, {"alpha": 1.0, "hidden": 1.0, "attention": 1.0}, teacher)
    student.load_state_dict(teacher.state_dict())
    batch = batches(range, 0)[0]
    loss = model.loss(batch.inputs, batch.targets)
    loss.backward()
    assert loss.item() == 0 and all(not p.grad.any() for p in model.parameters()
                                    if p.grad is not None)


def test_the_teacher_gets_no_gradient_and_drops_nothing_out():
    teacher = teacher_model(0.5)
    model = taught(gpt(), teacher=teacher)
    batch = batches(range, 0)[0]
    expected = model.loss(batch.inputs, batch.targets)
    with training_step(0, 0, range(B)):
        loss = model.loss(batch.inputs, batch.targets)
    assert loss.item() == expected.item()
    loss.backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert not {id(p) for p in teacher.parameters()} & {id(p) for p in model.parameters()}


def test_hidden_layers_of_an_mlp():
    student, teacher = MLP([5, 4, V]), MLP([5, 9, 7, V]).initialize(1, np.float64)
    model = taught(student, {"hidden": 1.0, "alpha": 0.5}, teacher)
    assert [hidden_parts(m) for m in (student, teacher)] == [[0], [0, 1]]
    x = np.random.default_rng(0).standard_normal((3, 5))
    loss = model.loss(x, np.array([1, -100, 2]))
    with no_grad():
        own, theirs = run_with_taps(student, x, [0]), run_with_taps(teacher, x, [1])
        d = model.projections[0](own.hidden[0]).data - theirs.hidden[0].data
        without = taught(student, {"alpha": 0.5}, teacher).loss(x, np.array([1, -100, 2])).item()
    assert np.isclose(loss.item(), without + np.sum(d[[0, 2]]**2) / 7 / 2, rtol=1e-12)


def test_watching_leaves_no_trace():
    model, ids = teacher_model(), np.arange(12).reshape(2, 6) % V
    plain = model.logits(ids).data
    seen = run_with_taps(model, ids, [1, 3], [0, 3])
    assert np.array_equal(seen.logits.data, plain)
    assert [x.shape for x in seen.hidden] == [(2, 6, 12)] * 2
    assert [x.shape for x in seen.attention] == [(2, 4, 6, 6)] * 2
    assert all("mix" not in vars(block.attn) for block in model.h)


def test_an_average_of_its_own_weights_as_teacher():
    student, recipe = gpt(), make_recipe(gpt(), gpt(), alpha=0.5)
    teacher = AveragedTeacher(gpt().initialize(3, np.float64), recipe, decay=0.75)
    model = Distillation(student, teacher, recipe).initialize(3, np.float64)
    first = teacher.model.state_dict()
    for parameter in model.parameters():
        parameter.data[...] += 1
    teacher.follow(model.state_dict())
    for name, array in teacher.model.state_dict().items():
        np.testing.assert_allclose(array, first[name] + 0.25, rtol=1e-12)
    with pytest.raises(ValueError, match="a decay is in"):
        AveragedTeacher(gpt(), recipe, 1.0)


@pytest.mark.parametrize("name, num_ranks", [("zero3", 2), ("fsdp", 3)])
@pytest.mark.one_in(2)
def test_a_teacher_that_follows_a_sharded_student(name, num_ranks):
    """Its weights are the same on every rank, and those of one process."""
    def body(comm, name):
        recipe = make_recipe(gpt(), gpt(), alpha=0.7, hidden=0.5)
        teacher = AveragedTeacher(gpt().initialize(4, np.float64), recipe, decay=0.5)
        model = Distillation(gpt(), teacher, recipe).initialize(3, np.float64)
        strategy = make_strategy(name, model, comm)
        optimizer, losses = PLAIN(strategy.slabs), []
        for step in range(3):
            optimizer.zero_grad()
            losses.append(strategy.forward_backward(batches(strategy.rows, step), 0, step))
            strategy.step(optimizer)
            teacher.follow(strategy.state_dict())
        return losses, teacher.model.state_dict()
    (losses, expected), = Cluster(1).run(partial(body, name="ddp"))[0]
    for found in Cluster(num_ranks).run(partial(body, name=name))[0]:
        np.testing.assert_allclose(found[0], losses, rtol=1e-10)
        for key, array in expected.items():
            np.testing.assert_allclose(found[1][key], array, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("student, teacher, weights, message", [
    (gpt(), MLP([4, V]), {}, "a GPT cannot learn from a MLP"),
    (MLP([4, 3]), MLP([4, V]), {}, "tells 3 classes apart, the teacher 11"),
    (MLP([5, V]), MLP([4, V]), {}, "takes 5 numbers, the teacher 4"),
    (MLP([4, 5, V]), MLP([4, 6, V]), {"attention": 1.0}, "only a GPT has attention scores"),
    (MLP([4, V]), MLP([4, 6, V]), {"hidden": 1.0}, "without hidden layers"),
    (GPT(GPTConfig(V, T + 1, 1, 1, 4)), gpt(), {}, "reads 6 tokens at once, the student 7"),
    (gpt(), gpt(), {"alpha": 1.5}, "alpha in"), (gpt(), gpt(), {"hidden": -1}, "weights >= 0"),
    (gpt(), gpt(), {"temperature": 0.0}, "a temperature is a number > 0"),
    (gpt(), gpt(), {"kind": "far"}, "unknown distance 'far'")])
def test_impossible_pairs_are_one_line(student, teacher, weights, message):
    with pytest.raises(ValueError, match=message) as error:
        make_recipe(student, teacher, **weights)
    assert "\n" not in str(error.value)


def test_a_module_as_teacher_is_refused():
    with pytest.raises(TypeError, match="LocalTeacher"):
        Distillation(gpt(), gpt(), make_recipe(gpt(), gpt()))
