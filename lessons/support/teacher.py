"""Lesson 25: a teacher that recognizes digits, and students that see few of them."""

import numpy as np

from minipar.autograd import no_grad
from minipar.comm import Communicator
from minipar.comm.collectives import chunk_bounds
from minipar.compress.distillation.distill import Distillation, LocalTeacher, make_recipe
from minipar.data import Batches, digits
from minipar.nn import MLP, Module
from minipar.optim import AdamW
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch

DATA, SIZES, SMALL = digits(), [64, 64, 10], [64, 16, 10]
FEW, BATCH, STEPS = 60, 20, 120         # the students' images, their batches, steps


def fit(comm: Communicator, model: Module, batches: Batches, num_steps: int, lr: float) -> list:
    """Train with DDP over comm; return the losses."""
    strategy, losses = make_strategy("ddp", model, comm), []
    optimizer = AdamW(strategy.slabs, lr)
    for step in range(num_steps):
        optimizer.zero_grad()
        batch = batches.batch(step)
        start, stop = chunk_bounds(len(batch[0]), comm.size)[comm.rank]
        losses.append(strategy.forward_backward([Microbatch(*(a[start:stop] for a in batch))]))
        strategy.step(optimizer)
    return losses


def few() -> Batches:
    """The images that the students see, with their labels."""
    return Batches(DATA.train_x[:FEW].astype(np.float64), DATA.train_y[:FEW], BATCH, 0)


def accuracy(model: Module) -> float:
    """The accuracy on the test images."""
    with no_grad():
        logits = model.logits(DATA.test_x.astype(np.float64)).data
    return float(np.mean(np.argmax(logits, axis=1) == DATA.test_y))


def student_of(teacher: Module, weights: dict, make: type = LocalTeacher) -> Distillation:
    """A new student with its teacher; all students start with the same weights."""
    student = MLP(SMALL)
    recipe = make_recipe(student, teacher, **weights)
    return Distillation(student, make(teacher, recipe), recipe).initialize(1, np.float64)


def taught_teacher(comm: Communicator) -> MLP:
    """A teacher trained on all images."""
    teacher = MLP(SIZES).initialize(0, np.float64)
    fit(comm, teacher, Batches(DATA.train_x.astype(np.float64), DATA.train_y, 32, 0), 150, 5e-3)
    return teacher


def copy_of(teacher: MLP) -> MLP:
    """A copy of the teacher, for another strategy."""
    model = MLP(SIZES).initialize(0, np.float64)
    model.load_state_dict(teacher.state_dict())
    return model
