"""Serve ranks until they end: carry their frames to the broker and back, and watch the limits.

    pipe of a rank ──▶ Assembler ──▶ Broker.take ──▶ answers, sent when the pipe takes them
    what it prints ──▶ kept, up to a limit

Nothing here blocks on a rank: a run ends when all ranks have ended, or with the first failure.
Exceeding the time limit is such a failure.
"""

import os
import re
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .broker import MAX_LINE, MAX_OPEN, Broken, Broker, Delivery, Mismatch
from .ranks.frames import Assembler, BadFrame, Frame, clean
from .ranks.values import decode

PIECE = 1 << 16             # bytes read at once
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Limits(NamedTuple):
    """The limits of a run: memory and printed bytes of each rank, wall-clock seconds of all."""

    seconds: float = 10.0
    memory: int = 256 << 20         # bytes beside Python and NumPy
    printed: int = 1 << 16          # bytes


class RunFailure(NamedTuple):
    """A failed run: the rank, the error, and the line of the submission."""

    rank: int | None
    error: str
    message: str
    line: str = ""


@dataclass
class RunResult:
    """The outcome of a run; `results` by rank: "return", and "arguments" as they are afterwards."""

    results: list[dict[str, Any] | None]
    messages: list[Delivery] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    failure: RunFailure | None = None
    num_splits: int = 0                 # calls of all ranks together


class RankHandle:
    """The checker's end of a rank."""

    def __init__(self, pid: int, pipe: socket.socket, output: int):
        self.pid, self.pipe, self.output = pid, pipe, output
        self.assembler, self.outgoing, self.printed = Assembler(), bytearray(), bytearray()
        self.has_ended = False          # no frame will come any more

    def read_output(self) -> bool:
        """Take what it has printed; False at the end."""
        with suppress(BlockingIOError):
            data = os.read(self.output, PIECE)
            self.printed += data
            return bool(data)
        return True

    def write(self) -> None:
        """Send as much to it as the pipe takes now."""
        with suppress(BlockingIOError, ConnectionError):
            sent = self.pipe.send(self.outgoing[:PIECE])
            del self.outgoing[:sent]


class RankService:
    """Serves `ranks`, and fills in `run`."""

    def __init__(self, ranks: Sequence[RankHandle], limits: Limits, run: RunResult):
        self.ranks, self.limits, self.run = ranks, limits, run
        self.broker = Broker(len(ranks), run.messages)

    def serve(self) -> RunFailure | None:
        """Carry messages until all ranks have ended; return the first failure."""
        deadline = time.monotonic() + self.limits.seconds
        with selectors.DefaultSelector() as selector:
            for number, rank in enumerate(self.ranks):
                selector.register(rank.pipe, READ | WRITE, number)
                selector.register(rank.output, READ, number)
            while running := {n for n, rank in enumerate(self.ranks) if not rank.has_ended}:
                if time.monotonic() > deadline:
                    return self.too_slow()
                if self.broker.is_stuck(running):
                    return RunFailure(None, "Deadlock", self.broker.deadlock(running),
                                      self.broker.waiting[min(running)].line)
                for key, events in selector.select(0.1):
                    failure = self.handle(key.data, key.fileobj, events, selector)
                    if failure is not None:
                        return failure
                for number in running:
                    rank = self.ranks[number]
                    if rank.has_ended:
                        selector.unregister(rank.pipe)
                    else:
                        selector.modify(rank.pipe, READ | WRITE * bool(rank.outgoing), number)
        self.run.num_splits = sum(self.broker.all_splits)
        left = self.broker.left_over()
        return RunFailure(None, "LostMessage", left) if left else None

    def handle(self, number: int, source: Any, events: int,
               selector: selectors.BaseSelector) -> RunFailure | None:
        """Read from a rank, and write to it, as far as it is ready; return a failure, if any."""
        rank = self.ranks[number]
        if source == rank.output:
            if not rank.read_output():
                selector.unregister(rank.output)
            if len(rank.printed) > self.limits.printed:
                return RunFailure(number, "TooMuchOutput", "it printed more than "
                                  f"{self.limits.printed:,} bytes")
            return None
        if events & WRITE:
            rank.write()
        return self.read(number) if events & READ else None

    def read(self, number: int) -> RunFailure | None:
        """Take what a rank has sent; return its failure, or None."""
        rank, data = self.ranks[number], b""
        try:
            data = rank.pipe.recv(PIECE)
        except BlockingIOError:
            return None
        except ConnectionError:
            pass
        if not data:
            rank.read_output()
            rank.has_ended = True
            return RunFailure(number, "Ended", "the process ended before the function returned: by "
                              "its own exit, or killed by the system (memory, CPU time)")
        try:
            for frame in rank.assembler.feed(data):
                kind = frame.fields.get("kind")
                if kind == "result":
                    self.run.results[number] = result_of(frame)
                    rank.has_ended = True
                    return None
                if kind == "error":
                    error, message, line = (frame.fields.get(name, "")
                                            for name in ("error", "message", "line"))
                    return RunFailure(number, clean(error), clean(message), clean(line, MAX_LINE))
                for dest, answer in self.broker.take(number, frame):
                    self.ranks[dest].outgoing += answer
                if len(rank.outgoing) > MAX_OPEN:
                    raise Broken("it waits for messages, and does not read them")
        except Mismatch as error:
            return RunFailure(error.rank, "ValueError", clean(error), error.line)
        except (BadFrame, Broken, ValueError) as error:
            return RunFailure(number, "BadMessage", clean(error))
        return None

    def too_slow(self) -> RunFailure:
        """The failure of a run whose time is over; its line is that of a rank that computes."""
        busy = [n for n, rank in enumerate(self.ranks)
                if not rank.has_ended and n not in self.broker.waiting]
        first = busy[0] if busy else 0
        rank = self.ranks[first]
        rank.read_output()
        printed = bytes(rank.printed)
        rank.printed.clear()
        with suppress(ProcessLookupError, PermissionError):
            os.kill(rank.pid, signal.SIGUSR1)               # faulthandler prints the stack
        time.sleep(0.05)
        rank.read_output()
        own = re.search(r'File "([^/<"]+)", line (\d+)', rank.printed.decode(errors="replace"))
        rank.printed[:] = printed       # without the stack, which has paths of this machine
        return RunFailure(first, "TooSlow", f"no end after {self.limits.seconds:g} s: is there a "
                          "loop whose condition stays true?", f"{own[1]}:{own[2]}" if own else "")


def result_of(frame: Frame) -> dict[str, Any]:
    """The result that a rank has sent.  Raises ValueError if it has a different form."""
    value = decode(frame.fields.get("value"), frame.arrays)
    if not isinstance(value, dict) or set(value) != {"return", "arguments"} \
            or not isinstance(value["arguments"], dict):
        raise ValueError("a result that is not of the form that ranks send")
    return value
