"""The collectives that the ranks of a communicator have called, compared.

    rank 0    7f03 91aa 5c20 …      a checksum of each call, in order
    rank 1    7f03 91aa e411 …      the third call is another one

The program only appends its calls to a queue.  The observer's thread makes the checksums, sends
those that are new to the other ranks, and compares theirs.  So no collective waits for the check.
"""

import weakref
import zlib
from collections import deque
from collections.abc import Sequence
from types import CodeType
from typing import Any

from ...communicator import Communicator
from ...simulated.mismatch import add_call, describe_mismatch
from .places import place_name

Described = tuple[int, dict[str, str | None]]       # checksum and texts of a call's arguments


class Log:
    """The calls of this rank on one communicator, `comm`, which is known as `key` on all ranks."""

    def __init__(self, comm: Communicator, key: str, members: Sequence[int]):
        self.key, self.members, self.comm = key, members, weakref.ref(comm)
        self.peers = [rank for rank in members if rank != comm.world_rank]
        self.queue: deque[tuple] = deque()          # (arguments, place, a Work's start)
        self.calls: dict[int, tuple] = {}           # (checksum, arguments, place) by number
        self.num_calls = self.num_told = 0
        self.num_equal = dict.fromkeys(self.peers, 0)       # number of its first calls that agree
        # the checksums of its calls after these
        self.theirs: dict[int, list[int]] = {rank: [] for rank in self.peers}

    def take(self, known: dict[tuple, Described]) -> None:
        """Number and describe the calls that the program has added."""
        while self.queue:
            arguments, place, started = self.queue.popleft()
            self.calls[self.num_calls] = (*described(arguments, known),
                                          place_name(place) if place else started)
            self.num_calls += 1

    def news(self) -> list[int]:
        """The checksums of the calls that the other ranks do not know yet."""
        start, self.num_told = self.num_told, self.num_calls
        return [self.calls[i][0] for i in range(start, self.num_calls)]

    def compare(self) -> int | None:
        """The number of the first call that differs from another rank's; forget equal ones."""
        odd = []
        for rank, theirs in self.theirs.items():
            start = self.num_equal[rank]
            for checksum in theirs[:self.num_calls - start]:
                if checksum != self.calls[self.num_equal[rank]][0]:
                    break
                self.num_equal[rank] += 1
            del theirs[:self.num_equal[rank] - start]
            if theirs and self.num_equal[rank] < self.num_calls:
                odd.append(self.num_equal[rank])
        if odd:
            return min(odd)
        done = min([self.num_told, *self.num_equal.values()])
        for i in [i for i in self.calls if i < done]:
            del self.calls[i]
        return None

    def first_missing(self) -> int | None:
        """The number of the first call that not all ranks have made; None if all made as many."""
        made = {self.num_calls, *(n + len(self.theirs[rank]) for rank, n in self.num_equal.items())}
        return min(made) if len(made) > 1 else None

    def is_settled(self) -> bool:
        """True if all calls are known to be equal."""
        return all(n == self.num_calls for n in self.num_equal.values())


def described(arguments: dict, known: dict[tuple, Described]) -> Described:
    """The checksum and texts of a call's arguments; `known` keeps earlier ones."""
    values = tuple(arguments.values())
    try:
        if values in known:
            return known[values]
    except TypeError:                       # a list of counts
        values = ()
    texts = {name: as_text(value) for name, value in arguments.items()}
    found = zlib.crc32(repr(texts).encode()), texts
    if values:
        known[values] = found
    return found


def as_text(value: Any) -> str | None:
    """An argument as all ranks write it, and in the report."""
    if isinstance(value, CodeType):         # of an operator; its place in memory differs
        return f"{value.co_name}#{zlib.crc32(value.co_code):08x}"
    return None if value is None else str(value)


def mismatch_report(calls: dict[int, list], ended: Sequence[int]) -> str:
    """The report on calls, (arguments, place) by rank; the ranks in `ended` made none."""
    grouped: list = []
    for rank, (arguments, place) in sorted(calls.items()):
        add_call(grouped, rank, place, arguments)
    for rank in ended:
        add_call(grouped, rank, "the end", {"operation": "nothing more"})
    return (describe_mismatch(grouped) or "").replace("nothing more()", "nothing more")
