"""The communicator that an assignment's functions get: ranks are processes, the checker is the net.

    comm.rank  comm.size
    comm.send(array, dest)     comm.recv(out, source)      comm.sendrecv(array, dest, out, source)
    comm.isend(…)  comm.irecv(…)  →  request.wait()
    comm.split(color, key)     the ranks of one color, as a communicator of their own

The methods are some of minipar's Communicator.  In minipar a send may block until it is received;
here it always does.  So a program that relies on buffering hangs, and the checker says which rank
waits for which.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .frames import Frame

Call = Callable[[dict[str, Any], dict[str, np.ndarray]], None]
NUM_TAGS = 1 << 15


class CheckerPipe:
    """The pipe to the checker: posts, and the completions that have come back."""

    def __init__(self, write: Call, read: Callable[[], Frame]):
        self.write, self.read = write, read
        self.num_posted = 0
        self.open: dict[int, PendingRequest] = {}

    def post(self, fields: dict[str, Any], request: "PendingRequest",
             **arrays: np.ndarray) -> "PendingRequest":
        """Send a post to the checker; `request` is done when the checker says so."""
        self.num_posted += 1
        self.open[self.num_posted] = request
        request.number = self.num_posted
        self.write({**fields, "id": request.number, "line": calling_line()}, arrays)
        return request

    def wait(self, request: "PendingRequest") -> None:
        """Block until the checker has completed `request`."""
        if not request.is_done:
            self.write({"kind": "wait", "id": request.number, "line": calling_line()}, {})
        while not request.is_done:
            self.take(self.read())

    def take(self, frame: Frame) -> None:
        """Complete the request that a frame answers."""
        self.open.pop(frame.fields["id"]).complete(frame)


class PendingRequest:
    """A send, a receive or a split that has begun.  Its array must not be touched before `wait`."""

    number = 0

    def __init__(self, wire: CheckerPipe, out: np.ndarray | None = None):
        self.wire, self.out = wire, out
        self.is_done, self.answer = False, None

    def complete(self, frame: Frame) -> None:
        """Take the answer; the checker has compared a message's size and dtype with `out`'s."""
        self.is_done, self.answer = True, frame.fields
        if self.out is not None:
            self.out[...] = frame.arrays["array"].reshape(self.out.shape)

    def wait(self) -> None:
        """Block until the request is done."""
        self.wire.wait(self)


class Communicator:
    """A group of `size` ranks that can exchange messages; this process is number `rank` of them."""

    def __init__(self, wire: CheckerPipe, rank: int, size: int, group: int = 0):
        self._wire, self._group = wire, group
        self.rank, self.size = rank, size

    def isend(self, array: np.ndarray, dest: int, tag: int = 0) -> PendingRequest:
        """Begin to send `array`; return at once."""
        self._check(array, dest, "dest", tag)
        return self._wire.post({"kind": "send", "group": self._group, "peer": int(dest),
                                "tag": int(tag)}, PendingRequest(self._wire), array=array)

    def irecv(self, out: np.ndarray, source: int, tag: int = 0) -> PendingRequest:
        """Begin to receive into `out`, which needs the size and dtype of the message."""
        self._check(out, source, "source", tag)
        return self._wire.post({"kind": "recv", "group": self._group, "peer": int(source),
                                "tag": int(tag), "size": out.size, "dtype": out.dtype.str},
                               PendingRequest(self._wire, out))

    def send(self, array: np.ndarray, dest: int, tag: int = 0) -> None:
        """Send `array` to `dest`.  Blocks until `dest` receives it."""
        self.isend(array, dest, tag).wait()

    def recv(self, out: np.ndarray, source: int, tag: int = 0) -> None:
        """Receive into `out` from `source`.  Blocks until the message is there."""
        self.irecv(out, source, tag).wait()

    def sendrecv(self, array: np.ndarray, dest: int, out: np.ndarray, source: int,
                 tag: int = 0) -> None:
        """Send `array` to `dest` while receiving `out` from `source`: the safe way to exchange."""
        self._check(array, dest, "dest", tag)       # before the other half is under way
        receiving = self.irecv(out, source, tag)
        self.isend(array, dest, tag).wait()
        receiving.wait()

    def split(self, color: int | None, key: int | None = None) -> "Communicator | None":
        """Collective.  A communicator of the ranks with this rank's `color`; None if that is None.

        Ranks are numbered by `key`, by default in their present order.
        """
        request = self._wire.post(
            {"kind": "split", "group": self._group, "color": None if color is None else int(color),
             "key": self.rank if key is None else int(key)}, PendingRequest(self._wire))
        request.wait()
        new = request.answer
        return None if color is None else Communicator(self._wire, new["rank"], new["size"],
                                                       new["group"])

    def _check(self, array: Any, peer: int, role: str, tag: int) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"a message is a NumPy array, not a {type(array).__name__}")
        if not 0 <= peer < self.size:
            raise ValueError(f"{role}={peer} is no rank of this communicator: it has "
                             f"0 … {self.size - 1}")
        if not 0 <= tag < NUM_TAGS:
            raise ValueError(f"tag={tag}: a tag is a number from 0 to {NUM_TAGS - 1}")


def calling_line() -> str:
    """The innermost line of the submission, as file:line.

    Its files have names without a folder.  Files with a path are Python's or the checker's.
    """
    frame = sys._getframe(1)
    while frame is not None and os.sep in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "an unknown line"
