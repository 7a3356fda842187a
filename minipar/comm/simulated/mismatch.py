"""Check that all ranks call the same collective: compare the calls, and report the lines.

    rank 0    all_reduce(op=sum, dtype=float32, shape=(4,))    train.py:12
    rank 1    all_reduce(op=max, dtype=float32, shape=(4,))    train.py:14      ◀── a different op

All ranks of a communicator must call the same collectives in the same order, with equal arguments
(MPI 4.1, chapter 6).  If they do not, messages of different collectives may still fit each other,
and the result is wrong without an error.  `Cluster(…, compare_calls=False)` omits the comparison.
"""

import reprlib
import sys
from typing import Any, NamedTuple

from ...backend import Array
from ..communicator import source_line

MOST = 16               # ranks in a line of the report, and lines


class RankCall(NamedTuple):
    """A collective that `ranks` (world numbers) called at `place` (file:line).

    `arguments` maps names to the values that must be equal on all ranks, "operation" among them.
    """

    ranks: list[int]
    place: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        given = [f"{name}={reprlib.repr(value) if isinstance(value, list) else value}"
                 for name, value in self.arguments.items()
                 if name != "operation" and value is not None]
        return (f"{name_ranks(self.ranks)} called {self.arguments['operation']}"
                f"({', '.join(given)}) at {self.place}")


class Calls(list):
    """The calls of a communicator's ranks for their n-th collective.

    A rank whose call does not fit the first one waits here until the run ends, and so does every
    rank that calls after it.
    """

    num_ranks, differ, ended_at = 0, False, None

    def __str__(self) -> str:
        return "for the other ranks to call the same collective"


class CollectiveMismatch(RuntimeError):
    """The ranks of a communicator called different collectives, or with different arguments.

    `stacks` maps each rank that could not continue to its lines (file, number), innermost first.
    """

    stacks: dict[int, list[tuple[str, int]]] = {}


def compare(comm: Any, operation: str, array: Array | None, uneven: int | None,
            options: dict) -> None:
    """Compare this rank's call of a collective with the first one; block the rank if any differed.

    It is called by `SimulatedCommunicator.collective`.
    """
    cluster, key = comm.cluster, (comm.group, comm.num_calls)
    calls = cluster.calls.get(key)
    if calls is None:
        calls = cluster.calls[key] = Calls()
    calls.num_ranks += 1
    place = source_line(sys._getframe(2).f_back, comm.started)     # the caller of the collective
    if not add_call(calls, comm.world_rank, place,
                    arguments_of(operation, array, uneven, options)):
        calls.differ = True
    all_here = calls.num_ranks == comm.size
    if calls.differ:
        if all_here:                        # the run ends now; else when no rank can go on
            cluster.ready.clear()
        comm.rank_state.block(calls)
    elif all_here:
        del cluster.calls[key]


def arguments_of(operation: str, array: Array | None, uneven: int | None, options: dict) -> dict:
    """The arguments of a RankCall: `options`, and the dtype and shape of `array`.

    The length of axis `uneven`, which may differ between ranks, is replaced by None.
    """
    about = {} if array is None else {"dtype": array.dtype, "shape": array.shape}
    arguments = {"operation": operation, **about, **options}
    if uneven is not None and array is not None:
        arguments["shape"] = (*array.shape[:uneven], None, *array.shape[uneven:][1:])
    if callable(options.get("op")):             # ranks have function objects of their own
        op = options["op"]
        arguments["op"] = getattr(op, "__code__", getattr(op, "__name__", type(op).__name__))
    if options.get("counts") is not None:       # a copy: the caller may change the list later
        arguments["counts"] = [[*row] if hasattr(row, "__len__") else row
                               for row in options["counts"]]
    return arguments


def add_call(calls: list[RankCall], rank: int, place: str, arguments: dict[str, Any]) -> bool:
    """Add the call of a rank to those of one collective; return whether it fits the first one."""
    for call in calls[:MOST]:
        if call.arguments == arguments and call.place == place:
            call.ranks.append(rank)
            break
    else:
        call = RankCall([rank], place, arguments)
        calls.append(call)
    return call is calls[0] or arguments == calls[0].arguments


def describe_mismatch(calls: list[RankCall]) -> str | None:
    """The report on calls that should be one collective; None if they are equal."""
    first = calls[0].arguments
    names = {name for call in calls for name in first | call.arguments
             if first.get(name) != call.arguments.get(name)}
    if not names:
        return None
    what = "operation" if "operation" in names else ", ".join(sorted(names))
    more = [f"and {len(calls) - MOST} others"] if len(calls) > MOST else []
    return "\n  ".join([f"collective mismatch: ranks differ in {what}", *map(str, calls[:MOST]),
                        *more]) + ("\nAll ranks of a communicator call the same collectives in the "
                                   "same order, with equal arguments.")


def name_ranks(ranks: list[int]) -> str:
    """"rank 3", "ranks 0, 1" or, for many, "ranks 0, 1, … and 84 more"."""
    said = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:MOST]))}"
    return said if len(ranks) <= MOST else f"{said} and {len(ranks) - MOST} more"
