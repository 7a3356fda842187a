"""ZB-V takes the shortest time there can be with F = I = W, for many microbatches and for few."""

import itertools

import pytest

from minipar.parallel.cost import pipelines as predict
from minipar.parallel.pipeline.schedule.metrics import in_flight
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.pipeline.schedule.simulate import Times, simulate

EQUAL = Times(1, 1, 1)
F_DOWN, F_UP, I_UP, I_DOWN, W = range(5)        # what a rank of a V counts; W of both its stages


def seconds_of(p, m):
    schedule, placement = make_schedule("zb_v", p, m)
    assert max(max(in_flight(row)) for row in schedule) <= 2 * p
    return simulate(schedule, EQUAL, placement).makespan()


@pytest.mark.parametrize("p", range(1, 11))
@pytest.mark.one_in(3)
def test_with_as_many_microbatches_as_ranks_it_reaches_the_bound(p):
    for m in range(p, 3 * p + 2):
        bound = predict.lower_bound(make_schedule("zb_v", p, m)[1], m, EQUAL, split=True)
        assert seconds_of(p, m) == bound == 6 * m + p - 1, m


@pytest.mark.parametrize(("p", "m"), [(2, 1), (3, 1), (3, 2), (4, 1), (4, 2), (4, 3), (5, 2),
                                      (5, 3), (5, 4), (6, 4), (2, 2), (3, 3)])
@pytest.mark.one_in(3)
def test_with_fewer_no_order_at_all_is_faster(p, m):
    took = int(seconds_of(p, m))
    assert some_order_ends_within(p, m, took)
    assert not some_order_ends_within(p, m, took - 1)


def some_order_ends_within(p, m, seconds):
    """True if there is an order that holds at most 2p microbatches a rank: all are tried.

    A stage takes microbatches in their order, which costs nothing: they are alike.
    """
    states = {((0,) * 5,) * p}      # of each rank, how many of each it has done
    for now in range(1, seconds + 1):
        states = {after for state in states for after in following(state, p, m)
                  if left(after, p, m) <= seconds - now}
    return bool(states)


def following(state, p, m):
    """The states that one second may lead to.  To wait helps only who might begin a forward."""
    options = []
    for rank, own in enumerate(state):
        ready = [k for k in range(5) if can(k, rank, state, p, m)]
        waits = [None] if all(k in (F_DOWN, F_UP) for k in ready) else []
        options.append([tuple(n + (i == k) for i, n in enumerate(own)) for k in ready + waits])
    return itertools.product(*options)


def can(kind, rank, state, p, m):
    """True if the rank could do its next one of this kind."""
    own, last = state[rank], rank == p - 1
    if kind == W:
        return own[W] < own[I_UP] + own[I_DOWN]
    if kind in (F_DOWN, F_UP) and own[F_DOWN] + own[F_UP] - own[W] == 2 * p:
        return False
    done = {F_DOWN: state[rank - 1][F_DOWN] if rank else m,
            F_UP: own[F_DOWN] if last else state[rank + 1][F_UP],
            I_UP: state[rank - 1][I_UP] if rank else own[F_UP],
            I_DOWN: own[I_UP] if last else state[rank + 1][I_DOWN]}[kind]
    return own[kind] < done


def left(state, p, m):
    """Seconds that are needed at least: for a rank's work, and for a microbatch's way to its end.
    """
    found = 0
    for rank, own in enumerate(state):
        ways = (4 * p - rank + 1, 2 * p + rank + 2, 2 * p - rank + 1, rank + 2)
        found = max(found, 6 * m - sum(own), *(m - done - 1 + way for done, way in zip(own, ways)
                                               if done < m))
    return found
