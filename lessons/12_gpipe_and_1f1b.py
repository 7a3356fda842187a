"""Lesson 12. GPipe and 1F1B: how do p ranks work at once, and what does it cost?

Rank s holds layer s, so with a whole batch p - 1 ranks would wait at any time.  Cut the batch into
m microbatches: while rank 1 works on the first, rank 0 starts the second.  The idle time that
remains is the *bubble*.  The last rank waits for p - 1 forwards before it starts, and the first
rank waits for p - 1 backwards before it ends.

    of the total  (p-1)/(m+p-1)     of the ideal  (p-1)/m       smaller with more microbatches

p = 2 ranks, m = 4 microbatches; a backward B takes as long as two forwards F:

    GPipe  rank 0   F0 F1 F2 F3 ·  ·  ·  B0 B0 B1 B1 B2 B2 B3 B3    all forwards first: a rank
           rank 1   ·  F0 F1 F2 F3 B0 B0 B1 B1 B2 B2 B3 B3 ·  ·     keeps m microbatches
    1F1B   rank 0   F0 F1 ·  ·  B0 B0 F2 B1 B1 F3 B2 B2 ·  B3 B3    each backward as soon as it can:
           rank 1   ·  F0 B0 B0 F1 B1 B1 F2 B2 B2 F3 B3 B3 ·  ·     rank s keeps at most p - s

The library's: minipar/parallel/pipeline/one_f_one_b.py; any schedule: executor.py beside it.

    python lessons/12_gpipe_and_1f1b.py        mpirun -n 4 python lessons/12_gpipe_and_1f1b.py
"""

import numpy as np
from micro import Tensor, backward, cross_entropy, linear, one_process, relu
from support.kit import Lesson, Row
from support.lesson_12 import compare_with_library

from minipar.comm import Communicator
from minipar.launcher import launch

WIDTH, ROWS, M = 16, 4, 8           # width of a layer, samples of a microbatch, microbatches


class Stage:
    """One rank's layer, and the microbatches whose backward it still owes."""

    def __init__(self, comm: Communicator, weight: np.ndarray, x: np.ndarray, labels: np.ndarray):
        self.comm, self.rank, self.is_last = comm, comm.rank, comm.rank == comm.size - 1
        self.weight, self.x, self.labels = Tensor(weight), x, labels    # x, labels: (m, rows, …)
        self.in_flight, self.most_in_flight, self.sends = {}, 0, []

    def send(self, array: np.ndarray, dest: int) -> None:
        self.sends.append(self.comm.isend(array, dest))

    def forward(self, i: int) -> None:
        """Microbatch i goes from the rank before to the rank after."""
        x = Tensor(self.x[i] if self.rank == 0 else np.empty((ROWS, WIDTH)))
        if self.rank > 0:
            self.comm.recv(x.data, self.rank - 1)
        y = linear(relu(x) if self.rank > 0 else x, self.weight)
        if self.is_last:
            y = cross_entropy(y, self.labels[i], self.labels.size)
        else:
            self.send(y.data, self.rank + 1)
        self.in_flight[i] = x, y
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))

    def backward_of(self, i: int) -> None:
        """Microbatch i's gradient goes to the rank before; that of the weight adds up."""
        x, y = self.in_flight.pop(i)
        grad = 1.0 if self.is_last else np.empty_like(y.data)
        if not self.is_last:
            self.comm.recv(grad, self.rank + 1)
        backward(y, grad)
        if self.rank > 0:
            self.send(x.grad, self.rank - 1)


def gpipe(stage: Stage, m: int) -> None:
    for i in range(m):
        stage.forward(i)
    for i in range(m):
        stage.backward_of(i)


def one_f_one_b(stage: Stage, m: int) -> None:
    ahead = min(stage.comm.size - stage.rank - 1, m)    # one for each later rank
    for i in range(ahead):                      # warm-up: until the first gradient can be back
        stage.forward(i)
    for i in range(ahead, m):                   # steady: one forward, one backward
        stage.forward(i)
        stage.backward_of(i - ahead)
    for i in range(m - ahead, m):               # cool-down
        stage.backward_of(i)


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    p, s, draw = comm.size, comm.rank, np.random.default_rng(0)
    weights = draw.standard_normal((p, WIDTH, WIDTH)) / 4
    x, labels = draw.standard_normal((M, ROWS, WIDTH)), draw.integers(0, WIDTH, (M, ROWS))
    alone = one_process(weights, x.reshape(-1, WIDTH), labels.ravel())
    rows, found = [], {}
    for schedule, live in ((gpipe, M), (one_f_one_b, min(M, p - s))):
        stage = Stage(comm, weights[s], x, labels)
        schedule(stage, M)
        for request in stage.sends:
            request.wait()
        name, found[schedule] = schedule.__name__, stage.weight.grad
        error = np.abs(stage.weight.grad - alone[s]).max()
        rows += [Row(f"{name}: difference from one process", 1e-14, error, "", "≤"),
                 Row(f"{name}: microbatches in flight on rank {s}", live, stage.most_in_flight)]
    lesson.say(f"The two schedules above, on p = {p} ranks with m = {M} microbatches:")
    lesson.table(rows)
    compare_with_library(lesson, weights, x, labels, found[gpipe], found[one_f_one_b])
    lesson.takeaway("Microbatches shrink the bubble to (p − 1)/m of the ideal time. 1F1B has the "
                    "same bubble as GPipe, but keeps p − s microbatches instead of all m.")
    lesson.exercises(questions=[
        "The bubble should be 5 % of the total on 8 ranks. How many microbatches does that take?",
        "In Stage.send, write `self.comm.send(array, dest)` in place of "
        "`self.sends.append(self.comm.isend(array, dest))`, and run on 4 simulated ranks. Which "
        "schedule hangs, and who waits for whom?",
        "Why does 1F1B not shrink the bubble? Which ranks idle when?",
        "Double m and halve the microbatches. How do bubble, memory, bytes and the efficiency of "
        "each product change?"])


if __name__ == "__main__":
    launch(main)
