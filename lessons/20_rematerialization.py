"""Lesson 20. Rematerialization: what does it cost to recompute activations?

Backward needs the arrays that forward saved, in reverse order: the first layer's arrays wait
longest.  Rematerialization keeps only the input of a segment of the model, and drops everything
else that the segment saves.  It runs the segment again when backward reaches it:

    forward    x ─▶ [0 1 2] ─▶ [3 4 5] ─▶ [6 7 8] ─▶ loss       √L inputs are kept for L layers,
    backward                              again, then back      and one segment's tape at a time
                               again, then back
                    again, then back

About √L segments are right for equal layers that save as much as their input.  But a block of a GPT
saves about twenty times its input, and the inputs of later segments are gone when the first one
runs again.  Which segments are best then?  The library's: minipar/memory/remat/.

    python lessons/20_rematerialization.py    mpirun -n 4 python lessons/20_rematerialization.py
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import accumulate, pairwise

import numpy as np
from micro import Tensor, backward, cross_entropy, linear, relu
from support.kit import Lesson, Row
from support.lesson_20 import compare_with_library

from minipar.comm import Communicator
from minipar.launcher import launch


def checkpoint(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """f(x), but only x is kept of its tape: backward runs f again, and walks the new tape."""
    def pull(g: np.ndarray) -> tuple[np.ndarray]:
        again = Tensor(x.data)                  # without the tape before x
        backward(f(again), g)                   # adds to the gradients of the weights in f
        return (again.grad,)
    return Tensor(f(Tensor(x.data)).data, (x,), pull)


def run_all(layers: list[Callable], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def in_segments(layers: list[Callable], ends: list[int], x: Tensor) -> Tensor:
    """As `run_all`; each segment, up to the next of `ends`, is one checkpoint."""
    for start, end in pairwise([0, *ends]):
        x = checkpoint(partial(run_all, layers[start:end]), x)
    return x


def best_ends(saved: list[int]) -> tuple[int, tuple[int, ...]]:
    """The fewest arrays alive at the peak, and the ends of the segments for it.

    Layer i saves saved[i] arrays, its input among them.  When segment j runs again, there are the
    inputs of the j segments before it, what it saves, and its result, unless it is the last.
    """
    total, num_layers = [0, *accumulate(saved)], len(saved)

    @cache
    def best(start: int, j: int) -> tuple[int, tuple[int, ...]]:
        """As `best_ends`, for the layers from `start` on, the first of which begins segment j."""
        if start == num_layers:
            return 0, ()
        choices = []
        for end in range(start + 1, num_layers + 1):
            peak, rest = best(end, j + 1)
            alive = j + total[end] - total[start] + (end < num_layers)
            choices.append((max(alive, peak), (end, *rest)))
        return min(choices)
    return best(0, 0)


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    draw, num_layers, runs = np.random.default_rng(comm.rank), 16, []
    weights = draw.normal(0, 0.5, (num_layers, 8, 8))
    x, labels = draw.random((4, 8)), draw.integers(0, 8, 4)

    def layer(w: Tensor, h: Tensor) -> Tensor:
        runs.append(w)
        return linear(relu(h), w)

    def gradients(ends: list[int]) -> list[np.ndarray]:
        """The gradients of a chain of layers; without `ends`, all is kept."""
        ws = [Tensor(w) for w in weights]
        layers = [partial(layer, w) for w in ws]
        y = in_segments(layers, ends, Tensor(x)) if ends else run_all(layers, Tensor(x))
        backward(cross_entropy(y, labels, 4))
        return [w.grad for w in ws]
    kept, num_kept = gradients([]), len(runs)
    again = gradients([4, 8, 12, 16])
    lesson.table([
        Row("gradients that differ, in √L segments", 0, int(np.sum(np.array(again) != kept))),
        Row(f"layers that run, all kept: L = {num_layers}", num_layers, num_kept),
        Row("    in √L segments: 2 L", 2 * num_layers, len(runs) - num_kept),
        Row("16 equal layers, best segments: the least a with a (a − 1)/2 + 1 ≥ L", 6,
            best_ends([1] * 16)[0], "arrays"),
        Row("64 equal layers; √L segments have 2 √L − 1 = 15", 12, best_ends([1] * 64)[0],
            "arrays")])
    compare_with_library(lesson, weights, x, labels, kept)
    lesson.takeaway("Rematerialization buys memory with FLOPs: for equal layers one more forward "
                    "buys √L. In general the best segments follow from the bytes that each part "
                    "saves and its FLOPs, and their cost is known before anything runs.")
    lesson.exercises(questions=[
        "In checkpoint, write `again = x` in place of `again = Tensor(x.data)`. What goes wrong?",
        "Why are the segments of the optimal plan for equal layers not equally long?",
        "Set the context to 512 and num_layers to 3 in CONFIG of support/lesson_20.py. How many "
        "times its input does a block save now? When is it enough to recompute only attention?",
        "Under tensor parallelism a forward has two all-reduces a block. What does *full* add?"])


if __name__ == "__main__":
    launch(main)
