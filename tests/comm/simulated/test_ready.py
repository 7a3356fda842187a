"""The ranks that can continue come as from a heap of (time, rank)."""

import random
from heapq import heapify, heappop, heappush

import pytest

from minipar.comm.simulated.ready import Ready


@pytest.mark.parametrize("seed", range(20))
def test_it_takes_turns_as_a_heap_does(seed):
    """Turns are added now or later, also of the rank whose turn it is; some are removed."""
    draw = random.Random(seed)
    ready, heap, now, next_rank = Ready("hub"), [], 0.0, 0
    for _ in range(400):
        if draw.random() < 0.55:                # few different times: many ranks at the same
            time, rank = now + draw.choice([0.0, 0.0, 0.5, 1.0]), draw.randrange(30)
            ready[time].append((-rank, rank))
            heappush(heap, (time, rank))
        elif draw.random() < 0.2:
            ready.remove((-next_rank, next_rank))
            heap = [event for event in heap if event[1] != next_rank]
            heapify(heap)
        elif heap:
            now, next_rank = heappop(heap)
            assert ready.next() == next_rank
        if heap:
            assert ready.has_before(*heap[-1]) == (heap[0] < heap[-1])
            assert ready.has_before(now + 2.0, 0)
    while heap:
        assert ready.next() == heappop(heap)[1]
    assert ready.next() == "hub"
