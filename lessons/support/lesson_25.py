"""Lesson 25: the library's distillation: students that see few digits, a teacher on other ranks."""

import numpy as np

from minipar.autograd import Tensor, no_grad, softmax
from minipar.comm import Communicator
from minipar.comm.collectives import chunk_bounds, sum_over_ranks
from minipar.compress.distillation.distill import Distillation, LocalTeacher, make_recipe
from minipar.compress.distillation.soft_targets import soft_cross_entropy
from minipar.compress.distillation.teacher_parallel import LABEL, AnnouncedBatches, ParallelTeacher
from minipar.data import Batches, digits
from minipar.nn import MLP, Module
from minipar.optim import AdamW
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Microbatch
from minipar.viz import draw_soft_targets

from .kept_trace import stop_trace
from .kit import ABOUT, Lesson, Row

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
FLOAT, SHORT = 8, 30        # bytes of a float64; steps with a teacher on other ranks
TAUGHT = {"temperature": 4.0, "alpha": 0.9}


def temperatures(lesson: Lesson, teacher: Module) -> None:
    """Show the gradient of the logits for several temperatures, with T² and without."""
    x, y = (array[:FEW] for array in (DATA.train_x.astype(np.float64), DATA.train_y))
    with no_grad():
        theirs, ours = (m.logits(x).data for m in (teacher, MLP(SMALL).initialize(1, np.float64)))
    limit = np.linalg.norm(*[(ours - theirs) - (ours - theirs).mean(1, keepdims=True)]) / 10 / FEW
    rows = []
    for T in (4.0, 64.0):
        z = Tensor(ours, requires_grad=True)
        soft_cross_entropy(z, theirs, y, T).backward()
        p, q = (softmax(Tensor(logits / T)).data for logits in (theirs, ours))
        norm = float(np.linalg.norm(z.grad))
        rows += [Row(f"T = {T:g}: ‖dz‖ = T ‖q − p‖ / n", T * np.linalg.norm(q - p) / FEW, norm),
                 Row("     its limit, ‖z − z'‖ / (n · classes)", limit, norm, "", ABOUT),
                 Row("     without T²: limit / T²", limit / T**2, norm / T**2, "", ABOUT)]
    assert abs(norm / limit - 1) < 0.02
    lesson.say("The gradient of the student's logits (n images). With T² it tends to a limit, so "
               "all temperatures can share one learning rate and one α. Without T² it vanishes.")
    lesson.table(rows, "T² in the gradient")


def students(comm: Communicator, lesson: Lesson, teacher: Module) -> list[float]:
    """Teach the same student in four ways; return the losses of the last one."""
    ways = {"labels alone": {"alpha": 0.0}, "soft targets, T = 1": {**TAUGHT, "temperature": 1.0},
            "soft targets, T = 4": TAUGHT, "… and the hidden layer": {**TAUGHT, "hidden": 0.1}}
    scores = {"the teacher (all 1,437 images)": accuracy(teacher)}
    for name, weights in ways.items():
        model = student_of(teacher, weights)
        losses = fit(comm, model, few(), STEPS, 1e-2)
        scores[name] = accuracy(model.student)
    assert scores["soft targets, T = 4"] > scores["labels alone"] + 0.05
    lesson.say(f"The student has {MLP(SMALL).num_parameters():,} parameters, the teacher "
               f"{teacher.num_parameters():,}. The student sees only {FEW} images, but for each "
               "the teacher gives ten numbers instead of one label. Hidden layers are matched "
               "through a learned projection (16 → 64), which is dropped afterwards; here that "
               "changes little.")
    lesson.grid(["trained on", "test images recognized"],
                [(name, f"{score:.1%}") for name, score in scores.items()])
    return losses


def elsewhere(comm: Communicator, lesson: Lesson, teacher: Module, expected: list) -> None:
    """Repeat the last student's first steps with the teacher split over ranks; count messages."""
    p, half = comm.size, comm.size - comm.size // 2
    weights, rows = {**TAUGHT, "hidden": 0.1}, []
    wide = 10, SIZES[1]                             # logits, and a hidden layer
    numbers = SHORT * BATCH * sum(wide)
    stay = SHORT * sum(np.dot(shares(BATCH, p), shares(n, p)) for n in wide)
    for teachers, pupils, told, where in (
            (range(half, p), range(half), numbers, "on other ranks: b · (classes + width) a step"),
            (range(p), range(p), numbers - stay, "on the same ranks: less, a rank has some "
                                                 "itself")):
        model = student_of(copy_of(teacher), weights, lambda m, r, ranks=(teachers, pupils):
                           ParallelTeacher(m, r, comm, *ranks, "tp", np.float64))
        announced = AnnouncedBatches(few(), model.teacher, range(SHORT))
        own, off = comm.split(0 if comm.rank in pupils else None), 0.0
        comm.start_trace()
        if own is None:
            announced.serve()
        else:
            losses = fit(own, model, announced, SHORT, 1e-2)
            off = float(np.max(np.abs(np.subtract(losses, expected[:SHORT]))))
        sent = sum_over_ranks(comm, stop_trace(comm).bytes_sent(label=LABEL))
        rows += [Row(f"sent, teacher {where}", FLOAT * int(told), int(sent), "B"),
                 Row("     loss − that of a teacher on every rank", 1e-10, off, "", "≤")]
    lesson.say(f"Now the teacher is split over {p - half} of {p} ranks, and the others train the "
               "student. Each teacher rank has some columns of all rows, each student rank needs "
               "all columns of its rows. Students announce each batch one step ahead, so the "
               "outputs arrive in time. Then once more, with every rank as teacher and student.")
    lesson.table(rows, f"a teacher on several ranks, {SHORT} steps of b = {BATCH}, float64")


def shares(total: int, p: int) -> list[int]:
    """The part of `total` rows or columns that each of p ranks has."""
    return [stop - start for start, stop in chunk_bounds(total, p)]


def telling(teacher: Module) -> tuple[int, dict]:
    """(an image that the teacher recognizes with some doubt, its probabilities for three T)."""
    with no_grad():
        logits = teacher.logits(DATA.test_x.astype(np.float64)).data
    second, first = np.sort(logits, axis=1).T[-2:]
    right = np.argmax(logits, axis=1) == DATA.test_y
    i = int(np.argmin(np.where(right, np.abs(first - second - 3), np.inf)))
    return i, {f"T = {T}": softmax(Tensor(logits[i] / T)).data for T in (1, 2, 4)}


def compare_with_library(lesson: Lesson, weights: list, teacher_weights: list, x: np.ndarray,
                         labels: np.ndarray, found: list) -> None:
    """Compare `found`, the loss and gradients; teach students; put the teacher on other ranks."""
    comm = lesson.comm
    lesson.say("The library compares any layers of any models, cut over ranks in any way. On the "
               "same weights, samples and teacher's outputs:")
    lesson.table([Row("difference from the lesson's loss and gradients", 1e-13, max(
        np.abs(a - b).max() for a, b in zip(found, library_gradients(
            comm, weights, teacher_weights, x, labels), strict=True)), "", "≤")])
    teacher = taught_teacher(comm)
    temperatures(lesson, teacher)
    losses = students(comm, lesson, teacher)
    elsewhere(comm, lesson, teacher, losses)
    i, softened = telling(teacher)
    truth = int(DATA.test_y[i])
    bars = {"the label": np.eye(10)[truth]} | softened
    lesson.picture(lambda path: draw_soft_targets(
        path, DATA.test_x[i].reshape(8, 8), bars, truth,
        f"A {truth}: its label, and what the teacher says, softmax(z / T)"))


def library_gradients(comm: Communicator, weights: list, teacher_weights: list, x: np.ndarray,
                      labels: np.ndarray) -> list:
    """Collective.  The loss, and the gradients of the student's weights and the projection."""
    student, teacher = (MLP([two[0].shape[0], *(w.shape[1] for w in two)])
                        for two in (weights[:2], teacher_weights))
    recipe = make_recipe(student, teacher.initialize(0, np.float64), hidden=0.1, **TAUGHT)
    model = Distillation(student, LocalTeacher(teacher, recipe), recipe).initialize(0, np.float64)
    for parameter in [*model.parameters(), *teacher.parameters()]:
        parameter.data[...] = 0                 # biases
    names = "0.weight", "2.weight", "projections.0.weight"
    own = dict(model.named_parameters())
    for parameter, values in zip([*(own[name] for name in names), teacher[0].weight,
                                  teacher[2].weight], [*weights, *teacher_weights]):
        parameter.data[...] = values
    strategy = make_strategy("ddp", model, comm)
    mine = np.array(strategy.rows(len(x)), int)
    loss = strategy.forward_backward([Microbatch(x[mine], labels[mine], mine)])
    return [loss, *(own[name].grad for name in names)]
