"""Printing: each line of a rank begins with the number of its rank, as `[2] loss 3.14`."""

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from io import TextIOBase
from typing import TextIO

# The rank whose code runs; each rank of the simulated cluster has a context of its own.
current_rank: ContextVar[int | None] = ContextVar("current_rank", default=None)


class RankLines(TextIOBase):
    """A stream that passes on whole lines of each rank; what no rank prints goes through as it is.
    """

    encoding = "utf-8"

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.parts: dict[int, str] = defaultdict(str)       # by rank: a line not yet complete

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Write the lines that are complete now."""
        rank = current_rank.get()
        if rank is None:
            return self.stream.write(text)
        *lines, self.parts[rank] = (self.parts[rank] + text).split("\n")
        for line in lines:
            self.stream.write(f"[{rank}] {line}\n")
        return len(text)

    def flush(self) -> None:
        """Flush the stream; lines that are not complete wait."""
        self.stream.flush()

    def finish(self) -> None:
        """Write the lines that were not completed."""
        for rank in sorted(self.parts):
            if self.parts[rank]:
                self.stream.write(f"[{rank}] {self.parts[rank]}\n")
        self.parts.clear()


@contextmanager
def numbered_lines() -> Iterator[None]:
    """Context in which each line that a rank prints begins with its number."""
    out, errors = RankLines(sys.stdout), RankLines(sys.stderr)
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            yield
    finally:
        out.finish()
        errors.finish()
