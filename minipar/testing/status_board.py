"""The status board: files by which the processes of one MPI job learn of each other.

             writes                     read by
    rank 0   board/events               ranks 1, 2, ... and the pytest that started the job
    rank r   board/rank-r               all ranks: "running test 7", "finished", "stuck"

The board is made of files, not messages, since a test may leave MPI blocked for good.  A process
that waits for a file sleeps, while a rank that waits in MPI keeps its core busy.  All ranks run on
one machine: they see the same directory and the same clock.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL = 0.01      # seconds between two looks at the board


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Sleep until the condition holds; return False if it did not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True


class StatusBoard:
    """The status of each rank of a job, and the events of rank 0."""

    def __init__(self, events: Path):
        self.events = events
        self.directory = events.parent

    def set_status(self, rank: int, **state: Any) -> None:
        """Replace the status of a rank; a reader sees the old one or the new one."""
        state["at"] = time.monotonic()          # a clock that all processes of a machine share
        draft = self.directory / f".rank-{rank}"
        draft.write_text(json.dumps(state, default=str))
        draft.rename(self.directory / f"rank-{rank}")

    def status(self, rank: int) -> dict[str, Any]:
        """The last status of a rank; empty before its first."""
        try:
            return json.loads((self.directory / f"rank-{rank}").read_text())
        except FileNotFoundError:
            return {}

    def add_event(self, event: str, **details: Any) -> None:
        """Append an event, one line of JSON; only rank 0 does."""
        line = json.dumps({"event": event, **details}, default=str) + "\n"
        with open(self.events, "a") as events:
            events.write(line)


class EventReader:
    """Reads the events of rank 0, in order, while they are being written."""

    def __init__(self, events: Path):
        self._file = open(events)               # noqa: SIM115 -- closed by close()
        self._half_line = ""

    def next(self) -> dict[str, Any] | None:
        """The next event; None if there is none yet."""
        self._half_line += self._file.readline()
        if not self._half_line.endswith("\n"):
            return None
        line, self._half_line = self._half_line, ""
        return json.loads(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
