"""Lesson 25. Distillation: what does a teacher know that a label does not say?

A label is one number: "1".  A teacher gives a probability for each class, and so it also says that
this 1 looks like a 7.  At temperature 1 that is nearly hidden; its logits z', divided by T, show
it:

    p = softmax(z'/T)   q = softmax(z/T)        loss = α T² Σ p ln(p/q) + (1 - α) cross-entropy

A teacher too large for one rank runs on several, perhaps on none of its students' ranks.  Then
only its outputs travel, each number once.

    python lessons/25_distillation.py          mpirun -n 4 python lessons/25_distillation.py
"""

import numpy as np
from support.kept_trace import stop_trace
from support.kit import ABOUT, Lesson, Row
from support.teacher import (
    BATCH,
    DATA,
    FEW,
    SIZES,
    SMALL,
    STEPS,
    accuracy,
    copy_of,
    few,
    fit,
    student_of,
    taught_teacher,
)

from minipar.autograd import Tensor, no_grad, softmax
from minipar.comm import Communicator
from minipar.comm.collectives import chunk_bounds, sum_over_ranks
from minipar.compress.distillation.soft_targets import soft_cross_entropy
from minipar.compress.distillation.teacher_parallel import LABEL, AnnouncedBatches, ParallelTeacher
from minipar.launcher import launch
from minipar.nn import MLP, Module
from minipar.viz import draw_soft_targets

FLOAT, SHORT = 8, 30        # bytes of a float64; steps with a teacher on other ranks
TAUGHT = {"temperature": 4.0, "alpha": 0.9}


def temperatures(lesson: Lesson, teacher: Module) -> None:
    """Show the gradient of the logits for several temperatures, with T² and without."""
    x, y = (array[:FEW] for array in (DATA.train_x.astype(np.float64), DATA.train_y))
    with no_grad():
        theirs, ours = (m.logits(x).data for m in (teacher, MLP(SMALL).initialize(1, np.float64)))
    limit = np.linalg.norm(*[(ours - theirs) - (ours - theirs).mean(1, keepdims=True)]) / 10 / FEW
    rows = []
    for T in (1.0, 4.0, 16.0, 64.0):
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


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
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
    lesson.takeaway("Soft targets say what else an image might be. T makes that visible, T² keeps "
                    "the size of the gradient, and a teacher on other ranks sends only its "
                    "outputs.")
    lesson.exercises(questions=[
        "Logits are 50,000 numbers a token, hidden layers 4,096: what would you send to a student "
        "that has the teacher's head?",
        "Why is the teacher's dropout off while the student's is on?",
        "At T → ∞ the loss compares the logits themselves: how large is it for a confident "
        "mistake?"])


if __name__ == "__main__":
    launch(main)
