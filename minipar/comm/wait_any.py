"""Waiting for whichever of several messages comes first: what a server does all day."""

import time
from collections.abc import Sequence

from .communicator import Request
from .progress import PausingRank, sleep_until_woken
from .simulated.rank import SimulatedRequest
from .trace import POLL


def wait_any(requests: Sequence[Request | None]) -> int:
    """Block until one of the requests of this rank is done; return its index.

    None stands for nothing to wait for.  Of several that are done it is the first to have been so
    in virtual time, under MPI the one of least index.  Works are not moved on meanwhile.
    """
    live = [(i, request) for i, request in enumerate(requests) if request is not None]
    if not live:
        raise ValueError("wait_any needs at least one request: all are None")
    if isinstance(live[0][1], SimulatedRequest):
        return _wait_simulated(live)
    me, description = live[0][1].comm.me, live[0][1].description
    with me.watchdog.watching(description, ()):       # who is missing is not known
        while True:
            for i, request in live:
                if request.test():
                    return i
            time.sleep(0)               # another process may need this core


def _wait_simulated(live: list[tuple[int, SimulatedRequest]]) -> int:
    me = live[0][1].rank
    if me.actions is not None:
        me.actions.append(POLL)
    for _, request in live:         # each gets a stand-in that waits for it alone
        request.rank = PausingRank(me)
        request.rank.waiting = request
    try:
        times = [request.done for _, request in live if request.done is not None]
        sleep_until_woken(me, min(times) if times else None, live[0][1])
    finally:
        for _, request in live:
            request.rank = me
    end, first = min((request.done, i) for i, request in live if request.done is not None)
    me.clock = max(me.clock, end)
    return first
