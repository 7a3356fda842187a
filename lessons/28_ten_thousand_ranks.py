"""Lesson 28. Ten thousand ranks: how does one laptop know when each of them waits?

How long a step takes does not depend on the numbers in its arrays.  So a rank becomes a generator,
which says what it does next, and is told when to go on:

    yield 1e-3                      compute for a millisecond
    sent = yield "send", dest, n    begin to send n bytes       came = yield "recv", source, n
    yield sent                      wait until that message has arrived

A *discrete-event simulator* takes the earliest event from a heap.  A message starts when both its
halves are posted and both ports are free, occupies these for n / bandwidth, and arrives α later.
Ranks that do the same at the same time are a *class*, and its first rank stands for all:

    node 0   [0][1][2][3]     3 sends to 4, for which 0 stands.  This meets what 0 receives from 7,
    node 1    4  5  6  7      for which 3 stands: the same program, over the same kind of link

Library: minipar/comm/simulated/.   python lessons/28_ten_thousand_ranks.py   (or mpirun -n 4 …)
"""

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Sequence
from heapq import heappop, heappush

from support.kit import Lesson, Row
from support.lesson_28 import compare_with_library

from minipar.comm import Communicator
from minipar.launcher import launch


class Request:
    """Half of a message: whose it is, whether that rank waits for it, and when it was done."""

    def __init__(self, rank: int):
        self.rank, self.is_awaited, self.done = rank, False, None


def simulate(programs: dict[int, Generator], link: Callable, first: Sequence[int]) -> dict:
    """The times at which ranks end.  first[i] stands for rank i; link(i, j) is (α, bandwidth)."""
    queue = [(0.0, rank, None) for rank in sorted(programs)]    # when, who, what it is told
    halves, ports, clock = defaultdict(deque), defaultdict(float), {}
    while queue:
        now, rank, answer = heappop(queue)
        clock[rank] = now
        try:
            event = programs[rank].send(answer)
        except StopIteration:
            continue
        if isinstance(event, float):                        # it computes
            heappush(queue, (now + event, rank, None))
        elif isinstance(event, Request):                    # it waits
            event.is_awaited = event.done is None
            if event.done is not None:
                heappush(queue, (max(now, event.done), rank, None))
        else:                                               # it begins to send or to receive
            way, peer, n = event
            source, dest = (rank, peer) if way == "send" else (peer, rank)
            out, into, mine = ("out", first[source]), ("in", first[dest]), Request(rank)
            heappush(queue, (now, rank, mine))
            halves[way, out, into].append(mine)
            sends, recvs = halves["send", out, into], halves["recv", out, into]
            if sends and recvs:                             # the other half is there
                latency, bandwidth = link(source, dest)
                ports[out] = ports[into] = max(now, ports[out], ports[into]) + n / bandwidth
                for half in (sends.popleft(), recvs.popleft()):
                    half.done = ports[out] + latency
                    if half.is_awaited:
                        heappush(queue, (half.done, half.rank, None))
    return clock


def classes(colours: Sequence[Hashable], meets: Callable, link: Callable) -> list[int]:
    """For each rank the first of its class: one colour, and equal links to equal neighbours."""
    while True:
        seen = [(colour, *((colours[j], link(i, j)) for j in meets(i)))
                for i, colour in enumerate(colours)]
        numbers = {}
        first = [numbers.setdefault(each, i) for i, each in enumerate(seen)]
        if len(numbers) == len({*colours}):
            return first
        colours = first


def ring(rank: int, ranks: range, n: int) -> Generator:
    """An all-reduce of n bytes: a piece to the right, one from the left, 2 (p - 1) times."""
    p, i = len(ranks), ranks.index(rank)
    for _ in range(2 * (p - 1)):
        sent = yield "send", ranks[(i + 1) % p], n // p
        came = yield "recv", ranks[i - 1], n // p
        yield sent
        yield came


def in_nodes(p: int, folded: bool) -> tuple[int, float]:
    """(ranks that are simulated, µs) of a ring with pieces of 10 kB over p ranks in nodes of 4."""
    def link(i: int, j: int) -> tuple[float, float]:
        return (1e-6, 1e11) if i // 4 == j // 4 else (1e-5, 1e10)
    first = classes([0] * p, lambda i: ((i + 1) % p, (i - 1) % p), link) if folded else range(p)
    clock = simulate({i: ring(i, range(p), 10_000 * p) for i in {*first}}, link, first)
    return len(clock), 1e6 * max(clock.values())


def main(comm: Communicator) -> None:
    lesson, p = Lesson(comm, __file__, __doc__), 16 * comm.size
    whole, folded, large = in_nodes(p, False), in_nodes(p, True), in_nodes(10_240, True)
    lesson.say("A ring waits for its far links, 10 µs and 10 GB/s: 2 (p − 1) messages of 10 kB.")
    lesson.table([Row(f"{p} ranks, all simulated: µs", 2 * (p - 1) * 11, whole[1], "µs"),
                  Row("    one rank of each class: µs", whole[1], folded[1], "µs"),
                  Row("    classes: the places in a node", 4, folded[0]),
                  Row("10,240 ranks, as 4: µs", 20_478 * 11, large[1], "µs")], found="simulated")
    compare_with_library(lesson, simulate, classes, ring)
    lesson.takeaway("A rank is a generator, time a heap of events; ranks that do the same are one.")
    lesson.exercises(questions=[
        "In simulate, write `now` in place of `max(now, ports[out], ports[into])`. What is faster?",
        "How many events are there in the ring of 10,240 ranks, folded and not?",
        "One of 64 ranks computes before the ring begins. How many classes are there?"])


if __name__ == "__main__":
    launch(main)
