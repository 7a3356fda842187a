"""Find the ranks that can never go on, from what all ranks say of themselves, and report them.

A row is what a rank says: whether it waits, and what can end its wait.  A wait has alternatives.
Each needs some posts (begun sends and receives) or calls of other ranks, its *peers*.  Each peer
answers whether it has made them.  An alternative is lost if it needs something that a peer has not
done and cannot do: the peer is stuck, has left, or is stopped.  A rank is stuck if all its
alternatives are lost.

This is exact, however slow messages are.  A stuck peer posts nothing more, so what it has not
posted until now, it never will.
"""

from typing import Any

from ...simulated.deadlock import deadlock_sentence
from ...simulated.mismatch import MOST, name_ranks

STEADY = 2                  # rows in which a wait must be the same

Row = dict[str, Any]        # see `CallObserver.look`


def find_stuck(rows: dict[int, Row], stopped: set[int]) -> set[int]:
    """The ranks that can never go on."""
    left = {rank for rank, row in rows.items() if row["state"] != "runs"}
    stuck = {rank for rank, row in rows.items()
             if row["wait"] and row["wait"]["steps"] >= STEADY} - left - stopped
    while True:
        dead = stuck | left | stopped
        free = {rank for rank in stuck if not is_stuck(rank, rows, dead, stopped)}
        if not free:
            return stuck
        stuck -= free


def is_stuck(rank: int, rows: dict[int, Row], dead: set[int], stopped: set[int]) -> bool:
    """True if `rank` stays in its wait as long as the ranks in `dead` do nothing."""
    wait = rows[rank]["wait"]

    def is_missing(peer: int, i: int, j: int) -> bool:
        about, given = rows[peer]["answers"].get(str(rank), ("", []))
        return peer in stopped or about == wait["id"] and given[i][j] is False
    return all(any(is_missing(peer, i, j) for j, (peers, _) in enumerate(needs)
                   for peer in peers if peer in dead)
               for i, needs in enumerate(wait["alternatives"]))


def describe_stuck(rows: dict[int, Row], stuck: set[int], stopped: dict[int, str]) -> str:
    """The report on stuck ranks, in the words of the simulated cluster."""
    running = {rank for rank, row in rows.items() if row["state"] == "runs"}
    who = "no rank" if stuck == running - set(stopped) else name_ranks(sorted(stuck))
    what = f"{who} {'cannot' if who != 'no rank' else 'can'} go on"
    labels = {rows[rank]["wait"]["label"] for rank in stuck}
    return deadlock_sentence(what, describe_rows(rows, running, stopped), labels)


def describe_rows(rows: dict[int, Row], ranks: set[int], stopped: dict[int, str]) -> list[str]:
    """A line for each of these ranks: what it does, and where."""
    lines = []
    for rank in sorted(ranks)[:MOST]:
        wait, gone = rows[rank]["wait"], ""
        if wait and wait["peer"] in stopped:
            gone = ", which is stopped,"
        elif wait and wait["peer"] is not None and rows[wait["peer"]]["state"] != "runs":
            gone = ", which has returned,"
        last = f"{stopped[rank]}; seen last: " if rank in stopped else ""
        lines.append(f"rank {rank} {last}{describe(rows[rank], gone)}")
    return lines + [f"and {len(ranks) - MOST} more ranks"] * (len(ranks) > MOST)


def describe(row: Row, gone: str = "") -> str:
    """A line on a rank: what it does, and where."""
    what = f"waits {row['wait']['text']}{gone}" if row["wait"] else "computes"
    return f"{what} at {row['line']}"


def describe_long_wait(rows: dict[int, Row], limit: float) -> str | None:
    """The report on waits of more than `limit` seconds; None if there are none."""
    late = sorted(rank for rank, row in rows.items()
                  if row["wait"] and row["wait"]["seconds"] > limit)
    if not late:
        return None
    running = {rank for rank, row in rows.items() if row["state"] == "runs"}
    return "\n  ".join([f"{name_ranks(late)} waited for more than {limit:g} s",
                        *describe_rows(rows, running, {})]) + \
        "\nMINIPAR_TIMEOUT=SECONDS sets the limit."
