"""A teacher on other ranks says what it would say on one, and sends what was predicted."""

from functools import cache, partial

import numpy as np
import pytest

from minipar.comm import Cluster, Deadlock
from minipar.comm.collectives import chunk_bounds, sum_over_ranks
from minipar.compress.distillation.distill import Distillation, LocalTeacher, make_recipe
from minipar.compress.distillation.teacher_messages import bytes_between
from minipar.compress.distillation.teacher_parallel import (
    INSIDE,
    LABEL,
    AnnouncedBatches,
    ParallelTeacher,
)
from minipar.launcher import metered
from minipar.nn import GPT, MLP, GPTConfig
from minipar.optim import SGD
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.testing.worlds import worlds

V, T, B, STEPS = 11, 6, 5, 3
WEIGHTS = {"temperature": 3.0, "alpha": 0.6, "hidden": 0.5, "attention": 2.0}


class Ids:
    """Batches of a text; the last one is smaller."""

    def batch(self, step):
        draw, rows = np.random.default_rng(step), B - (step == STEPS - 1)
        ids = draw.integers(0, V, (rows, T + 1))
        return ids[:, :-1], ids[:, 1:], B * step + np.arange(rows)


class Points:
    """Batches for an MLP."""

    def batch(self, step):
        draw = np.random.default_rng(step)
        return draw.standard_normal((B, 5)), draw.integers(0, V, B), B * step + np.arange(B)


def gpt_pair():
    return (GPT(GPTConfig(V, T, 2, 2, 8)), GPT(GPTConfig(V, T, 4, 4, 12)), Ids(), WEIGHTS)


def mlp_pair():
    return MLP([5, 6, V]), MLP([5, 8, 7, 9, V]), Points(), {"hidden": 1.0}


PAIRS = {"gpt": gpt_pair, "mlp": mlp_pair}


def train(strategy, batches, parts):
    """Losses, and the parameters at the end."""
    optimizer, losses = SGD(strategy.slabs, lr=0.2), []
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = batches.batch(step)
        rows = strategy.rows(len(batch[0]))
        mine = [array[rows.start:rows.stop] for array in batch]
        losses.append(strategy.forward_backward([
            Microbatch(*(array[start:stop] for array in mine))
            for start, stop in chunk_bounds(len(rows), parts)], 0, step))
        strategy.step(optimizer)
    return losses, strategy.state_dict()


def make(kind, teacher_of):
    """A student of the teacher that teacher_of(model, recipe) makes, and the batches."""
    student, teacher, batches, weights = PAIRS[kind]()
    recipe = make_recipe(student, teacher, **weights)
    teacher = teacher_of(teacher, recipe)
    return Distillation(student, teacher, recipe), teacher, batches


@cache
def alone(kind):
    """The same on one rank."""
    def body(comm):
        model, _, batches = make(kind, lambda model, recipe: LocalTeacher(
            model.initialize(1, np.float64), recipe))
        return train(make_strategy("ddp", model.initialize(0, np.float64), comm), batches, 1)
    return Cluster(1).run(body)[0][0]


def spread(comm, kind, teachers, students, split, strategy="ddp", parts=2):
    """(losses, parameters) on students, None elsewhere; bytes predicted and sent, of this rank."""
    def teacher_of(model, recipe):
        if comm.rank in teachers:
            model.initialize(1, np.float64)
        return ParallelTeacher(model, recipe, comm, teachers, students, split, np.float64)
    model, teacher, batches = make(kind, teacher_of)
    predicted = sum(bytes_between(teacher.plan(batches.batch(step)[0]), teacher.dtype.itemsize)
                    for step in range(STEPS))
    own = comm.split(0 if comm.rank in students else None)
    announced = AnnouncedBatches(batches, teacher, range(STEPS), parts)
    comm.start_trace()
    if own is None:
        announced.serve()
        result = None
    else:
        result = train(make_strategy(strategy, model.initialize(0, np.float64), own), announced,
                       parts)
    return result, predicted, comm.stop_trace()


def check(world, kind, teachers, students, split, **how):
    expected = alone(kind)

    def body(comm):
        result, predicted, trace = spread(comm, kind, teachers, students, split, **how)
        assert predicted == sum_over_ranks(comm, trace.bytes_sent(label=LABEL))
        if result is not None:
            np.testing.assert_allclose(result[0], expected[0], rtol=1e-10)
            for name, array in expected[1].items():
                np.testing.assert_allclose(result[1][name], array, rtol=1e-10, atol=1e-12,
                                           err_msg=name)
    world.run(body)


@worlds(4, mpi=(4,))
@pytest.mark.parametrize("split", ["tp", "pp"])
@pytest.mark.parametrize("kind", PAIRS)
def test_on_other_ranks(world, kind, split):
    check(world, kind, [2, 3], [0, 1], split)


@worlds(2, mpi=(2,))
@pytest.mark.parametrize("split", ["tp", "pp"])
@pytest.mark.one_in(2)
def test_on_the_students_ranks(world, split):
    check(world, "gpt", [0, 1], [0, 1], split, strategy="fsdp")


@worlds(6, mpi=())
@pytest.mark.parametrize("kind, teachers, students", [
    ("gpt", [4], [0, 1, 2, 3]), ("gpt", [5, 1, 0, 2], [3]), ("gpt", [0, 1], [1, 2, 3]),
    ("mlp", [1, 2, 4], [0, 1, 2, 3, 4, 5])])
@pytest.mark.one_in(2)
def test_any_ranks(world, kind, teachers, students):
    """Also more students than rows, teachers that are students and ranks that are neither."""
    for split in ("tp", "pp"):
        check(world, kind, teachers, students, split, strategy="zero1", parts=1)


def test_what_goes_on_inside_a_teacher_is_counted_apart():
    def body(comm):
        _, predicted, trace = spread(comm, "gpt", [2, 3], [0, 1], "pp")
        return predicted, trace.bytes_sent(label=LABEL), trace.bytes_sent(label=INSIDE)
    found = Cluster(4).run(body)[0]
    rows = sum(len(Ids().batch(step)[0]) for step in range(STEPS))
    assert found[2][2] == 8 * rows * T * 12         # the width, over the boundary of two stages
    assert all(inside == 0 for _, _, inside in found[:2] + found[3:])
    assert sum(sent for _, sent, _ in found) == found[0][0]


def test_one_batch_ahead_hides_the_teacher_s_time():
    """Virtual seconds: a teacher that works while students train, against one that is waited for.
    """
    def body(comm, ahead):
        def teacher_of(model, recipe):
            return ParallelTeacher(model.initialize(1), recipe, comm, [0], [1])
        model, teacher, batches = make("gpt", teacher_of)
        own, announced = comm.split(comm.rank), AnnouncedBatches(batches, teacher, range(STEPS))
        if comm.rank == 0 and ahead:
            announced.serve()
        elif comm.rank == 0:
            for step in range(STEPS):
                teacher.announce(batches.batch(step)[0])
                comm.recv(np.empty(1), 1)           # the student is through
            teacher.finish()
        else:
            strategy = make_strategy("ddp", model.initialize(0), own)
            for step in range(STEPS):
                if ahead:
                    batch = announced.batch(step)
                else:
                    batch = batches.batch(step)
                    teacher.announce(batch[0])
                model.zero_grad()
                strategy.forward_backward([Microbatch(*batch)])
                if not ahead:
                    comm.send(np.empty(1), 0)
    took = [Cluster(2, flops_per_second=1e8).run(metered(partial(body, ahead=ahead)))[1]
            for ahead in (True, False)]
    assert took[0] < 0.9 * took[1]


def test_mistakes_are_said():
    def body(comm):
        def teacher_of(model, recipe):
            return ParallelTeacher(model.initialize(1, np.float64), recipe, comm, [0, 1], [0, 1],
                                 dtype=np.float64)
        model, teacher, batches = make("gpt", teacher_of)
        inputs = batches.batch(0)[0]
        with pytest.raises(ValueError, match="does not have this batch"):
            teacher(inputs)
        teacher.announce(inputs)
        with pytest.raises(ValueError, match=r"of [32] rows was announced here, but 5 were asked"):
            teacher(inputs)
        teacher.finish()
    Cluster(2).run(body)


@pytest.mark.parametrize("teachers, students, split, message", [
    ([], [0], "tp", "at least one of each"), ([0], [2], "tp", "ranks in 0 … 1"),
    ([0, 1], [0], "dp", "split by tp or pp")])
def test_impossible_teachers_are_refused(teachers, students, split, message):
    def body(comm):
        make("gpt", lambda model, recipe: ParallelTeacher(
            model.initialize(1), recipe, comm, teachers, students, split))
    with pytest.raises(ValueError, match=message):
        Cluster(2).run(body)


def test_a_batch_that_only_some_announce_is_a_sentence_not_a_hang():
    def body(comm):
        def teacher_of(model, recipe):
            return ParallelTeacher(model.initialize(1), recipe, comm, [0], [1])
        _, teacher, batches = make("gpt", teacher_of)
        if comm.rank == 0:
            teacher.announce(batches.batch(0)[0])
            teacher.finish()
    with pytest.raises(Deadlock, match="teacher to student|send"):
        Cluster(2).run(body)
