"""The board: a directory through which the processes of one MPI job know of each other.

                    rank 0 announces            everyone else reads
    rank 0  ----->  board/results  ------------>  ranks 1, 2, ... and the parent
    rank r  ----->  board/rank-r   ------------>  all ranks ("I am running test 7", "I am stuck")

It is made of files and not of messages because the tests that it watches may leave MPI blocked
for good; and because whoever waits for a file can sleep, while ranks that wait in MPI burn a core.
All ranks must see the same directory: they run on one machine, or share a file system.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL = 0.01      # seconds between two looks at the board


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Sleep until the condition holds; False if it did not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True


class Board:
    """What each rank of a job does just now, and what rank 0 has announced."""

    def __init__(self, results: Path):
        self.results = results
        self.directory = results.parent

    def post(self, rank: int, **state: Any) -> None:
        """Replace what the board says of one rank; a reader sees the old state or the new one."""
        state["at"] = time.monotonic()          # this clock is the same in all processes
        draft = self.directory / f".rank-{rank}"
        draft.write_text(json.dumps(state, default=str))
        draft.rename(self.directory / f"rank-{rank}")

    def state(self, rank: int) -> dict[str, Any]:
        """What a rank posted last; empty before its first post."""
        try:
            return json.loads((self.directory / f"rank-{rank}").read_text())
        except FileNotFoundError:
            return {}

    def announce(self, event: str, **details: Any) -> None:
        """Add a line for everyone (rank 0 only)."""
        line = json.dumps({"event": event, **details}, default=str) + "\n"
        with open(self.results, "a") as results:
            results.write(line)


class Announcements:
    """Reads what rank 0 announces, in order, while it is being written."""

    def __init__(self, results: Path):
        self._file = open(results)              # noqa: SIM115 -- closed by close()
        self._half_line = ""

    def next(self) -> dict[str, Any] | None:
        """The next announcement; None if there is none yet."""
        self._half_line += self._file.readline()
        if not self._half_line.endswith("\n"):
            return None
        line, self._half_line = self._half_line, ""
        return json.loads(line)

    def close(self) -> None:
        """Stop reading."""
        self._file.close()
