"""Lesson 30. Continuous batching: when may the next request begin?

A step of decoding reads all weights, for one sequence or for fifty, so sequences should be decoded
together.  But they do not come together, and they do not end together.  A static batch waits for
its longest answer, with ever fewer sequences:

    static    A A · · · · · · · D D D D · ·     continuous    A A D D D D F F ·
              B B B B B B B B B E E E E E E                   B B B B B B B B B
              C C C · · · · · · F F · · · ·                   C C C E E E E E E

With a new schedule before every step, a request begins as soon as one ends (Orca).  A long prompt
must not hold up the others: a *token budget* cuts it into chunks, beside one token of each other
request.  And when blocks run out, the latest request is preempted and computed again later.

    python lessons/30_continuous_batching.py   mpirun -n 4 python lessons/30_continuous_batching.py
"""

from collections import deque

from support.kit import Lesson, Row
from support.lesson_30 import compare_with_library

from minipar.comm import Communicator
from minipar.launcher import launch

BLOCK = 4                               # tokens whose keys and values lie in a block


class Request:
    """`known` tokens; `computed` of them are in `blocks` of the cache; it ends with `end`."""

    def __init__(self, name: str, prompt: int, answer: int):
        self.name, self.known, self.end = name, prompt, prompt + answer
        self.computed = self.blocks = 0


def schedule(waiting: deque, running: list, budget: int, num_blocks: int, most: int) -> list:
    """The next step: (request, how many tokens it computes) for some of those that run."""
    step, has_preempted = [], False

    def lacks(request: Request, n: int) -> int:
        free = num_blocks - sum(each.blocks for each in running)
        return -(-(request.computed + n) // BLOCK) - request.blocks - free

    def take(request: Request, n: int) -> None:
        request.blocks = -(-(request.computed + n) // BLOCK)
        step.append((request, n))
    for request in list(running):               # those that run come first, the oldest before all
        n = min(request.known - request.computed, budget)       # a token, or a chunk of the prompt
        while n and request in running and lacks(request, n) > 0:
            victim = running.pop()              # preempt the latest: it forgets, and waits again
            victim.computed = victim.blocks = 0
            waiting.appendleft(victim)
            has_preempted = True
        if n and request in running:
            take(request, n)
            budget -= n
    while waiting and budget and len(running) < most and not has_preempted:     # admit
        request, n = waiting[0], min(waiting[0].known, budget)
        if lacks(request, n) > 0:
            break
        running.append(waiting.popleft())
        take(request, n)
        budget -= n
    return step


def finish(step: list, running: list) -> None:
    """The model has run: a request that is computed to its end has drawn its next token."""
    for request, n in step:
        request.computed += n
        if request.computed == request.known:
            request.known += 1
            if request.known == request.end:    # the last token is never computed
                running.remove(request)         # its blocks are free


def serve(requests: list, budget: int, num_blocks: int, most: int, static: bool = False) -> list:
    """Every step until all are done: [(name, tokens computed before, tokens), …] of each."""
    waiting, running, steps = deque(requests), [], []
    while waiting or running:
        step = schedule(waiting, running, budget, num_blocks, 0 if static and running else most)
        steps.append([(request.name, request.computed, n) for request, n in step])
        finish(step, running)
    return steps


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    six = {"A": (5, 2), "B": (3, 9), "C": (6, 3), "D": (2, 4), "E": (4, 6), "F": (7, 2)}
    long = {**dict.fromkeys("abcd", (1, 300)), "long": (600, 5)}
    four = {"A": (7, 10), "B": (9, 10), "C": (5, 10), "D": (8, 10)}
    sizes = {"static": (six, 100, 99, 3, True), "continuous": (six, 100, 99, 3),
             "chunks": (long, 104, 999, 9), "preempted": (four, 100, 9, 9)}
    runs = {name: serve([Request(each, *lengths) for each, lengths in requests.items()], *limits)
            for name, (requests, *limits) in sizes.items()}
    computed = sum(n for step in runs["preempted"] for _, _, n in step)
    lesson.table([
        Row("static batches of 3: steps, 9 + 6", 15, len(runs["static"])),
        Row("continuous, 3 at a time: steps, ⌈26 tokens / 3⌉", 9, len(runs["continuous"])),
        Row("600 tokens beside 4 requests, budget 104: chunks, ⌈600/(104 − 4)⌉", 6, sum(
            name == "long" and at < 600 for step in runs["chunks"] for name, at, _ in step)),
        Row("9 blocks where 18 are needed: computed, 65 and 2 · 8 again", 65 + 16, computed)])
    compare_with_library(lesson, sizes, runs)
    lesson.takeaway("Decide anew before every step: a request begins when another ends, long "
                    "prompts run in chunks beside the others, and no answer changes.")
    lesson.exercises(questions=[
        "In schedule, write `.append(victim)` in place of `.appendleft(victim)`. Is that fair?",
        "Static batches of three take 9 + 6 steps for the six requests. In which order of the six "
        "would they take the fewest?",
        "A step reads the weights in 10 ms and computes a token in 0.1 ms. From how many "
        "sequences on does a larger batch no longer gain tokens per second?",
        "A smaller token budget makes the gaps shorter. Why does the prompt wait longer, and what "
        "does a budget below 100 tokens cost here?",
        "With acceptance 0.8 and 4 drafts a call yields 3.36 tokens. A call of the draft model "
        "takes a tenth of one of the target. How much faster is it, and with 8 drafts?"])


if __name__ == "__main__":
    launch(main)
