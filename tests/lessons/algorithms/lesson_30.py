"""Lesson 30; `size` is the seed of random requests.  Ranks play no part."""

import random

import numpy as np

from tests.lessons.algorithms import Case, says


def scenario(seed):
    """Requests {name: (prompt, answer)}; budget, number of blocks, most requests, static."""
    draw = random.Random(seed)
    requests = {chr(65 + i): (draw.randint(1, 12), draw.randint(1, 12))
                for i in range(draw.randint(1, 8))}
    return requests, draw.choice([3, 7, 100]), draw.choice([7, 9, 40]), draw.choice([2, 3, 9]), \
        draw.random() < 0.3


def flat(steps):
    """A row for each entry: the number of its step, the request's letter, both numbers."""
    return np.array([(i, ord(name), *numbers) for i, step in enumerate(steps)
                     for name, *numbers in step])


def play(function, comm, seed, names):
    requests, *limits = scenario(seed)
    return flat(function([names["Request"](*each) for each in named(requests)], *limits))


def named(requests):
    return [(name, *lengths) for name, lengths in requests.items()]


def by_library(comm, seed):
    from support.lesson_30 import library_steps
    return flat(library_steps(*scenario(seed)))


CASES = [Case("serve", play, by_library, tuple(range(40)))]
PARTS = {"Request", "schedule", "finish"}


def check_change(names):
    """All end; D, preempted first, then stands before C; and behind E, which had not begun."""
    four = {"A": (7, 10), "B": (9, 10), "C": (5, 10), "D": (8, 10)}

    def order(requests, most):
        steps = names["serve"]([names["Request"](*each) for each in named(requests)], 100, 9, most)
        ends = {name: at + n for step in steps for name, at, n in step}
        assert ends == {name: prompt + answer - 1 for name, (prompt, answer) in requests.items()}
        begun = [name for step in steps for name, at, _ in step if at == 0]
        return begun[len(begun) - len(requests) + 2:]
    assert order(four, 9) == ["D", "C"]
    assert order({**four, "E": (4, 2)}, 4).index("E") < order(
        {**four, "E": (4, 2)}, 4).index("C")
    says("30", "All requests still end", "D stands before C")
