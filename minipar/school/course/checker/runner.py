"""Run a function of a submission on some ranks, and return its results, messages or failure.

    with Worker(limits) as worker:
        run = worker.run(Job(files, "ring", "all_gather", arguments))
        run.results[0]["return"]   run.messages   run.failure

A rank is a process in the `sandbox`, where that is supported.  The broker in this process carries
its messages.  If a rank hangs, crashes, prints without end or takes all memory, one run is lost and
no more.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np

from .ranks import sandbox
from .ranks.frames import pack
from .ranks.values import encode
from .service import Limits, RankHandle, RankService, RunResult

FIRST_USER = 61_000         # numbers of users that no account has
NUMPY = str(Path(np.__file__).parents[1])       # its folder: one of sys.path, or of PYTHONPATH


class WorkerError(Exception):
    """No rank can be started; the message is one line that says why."""


class Job(NamedTuple):
    """A call on each rank, with `arguments[rank]` and `comm`.

    If `is_serial`, it has one rank and no `comm`.
    """

    files: dict[str, str]           # source of the modules that can be imported, by name
    module: str
    function: str
    arguments: Sequence[dict[str, Any]]
    is_serial: bool = False


class Worker:
    """A context with a worker process; `is_fenced` tells whether the ranks are in the sandbox.

    All methods but `stop` raise WorkerError if the process does not start, or has ended.
    """

    def __init__(self, limits: Limits | None = None, fenced: bool = True):
        self.limits = limits or Limits()
        self.is_fenced = fenced and sandbox.is_supported()
        self.as_root = self.is_fenced and os.getuid() == 0
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> "Worker":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the worker process, with an environment of its own; return when it is ready."""
        self.control, theirs = socket.socketpair()
        package = Path(__file__).parent
        with TemporaryFile() as said:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c",
                 f"import sys; sys.path[:] = [{str(package.parent)!r}, *sys.path, {NUMPY!r}]; "
                 f"from {package.name}.ranks.worker import main; main()"],
                stdin=theirs, stderr=said,
                env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PATH": os.defpath,
                     "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"})
            theirs.close()
            try:
                self.answer()
            except WorkerError:
                self.stop()
                said.seek(0)
                words = said.read().decode(errors="replace").strip().split("\n")[-1]
                raise WorkerError(f"{sys.executable} cannot start ranks: {words or 'it ended'}"
                                  ) from None

    def stop(self) -> None:
        """End the worker process."""
        if self.process is not None:
            self.control.close()
            self.process.kill()
            self.process.wait()
            self.process = None

    def answer(self) -> Any:
        """The next answer of the worker process."""
        with suppress(ConnectionError):
            text = self.control.recv(64)
            if text:
                return json.loads(text)
        raise WorkerError("the process that starts ranks has ended: killed by the system, for its "
                          "memory?")

    def ask(self, request: dict[str, Any], fds: Sequence[int] = ()) -> Any:
        """The answer of the worker process to a request."""
        with suppress(ConnectionError):
            socket.send_fds(self.control, [json.dumps(request).encode()], fds)
        return self.answer()

    def run(self, job: Job) -> RunResult:
        """Run a job to its end, or to its failure."""
        size = len(job.arguments)
        ranks = [self.fork(rank) for rank in range(size)]
        run = RunResult([None] * size)
        try:
            for number, rank in enumerate(ranks):
                arrays: dict[str, np.ndarray] = {}
                tree = encode(dict(job.arguments[number]), arrays)
                rank.outgoing += pack({
                    "files": job.files, "module": job.module, "function": job.function,
                    "rank": number, "size": None if job.is_serial else size, "arguments": tree},
                    arrays)
            run.failure = RankService(ranks, self.limits, run).serve()
        finally:
            for rank in ranks:
                self.end(rank)
        run.printed = [rank.printed.decode(errors="replace") for rank in ranks]
        return run

    def fork(self, number: int) -> RankHandle:
        """A new rank, waiting for its job."""
        ours, theirs = socket.socketpair()
        output, written = os.pipe()
        request = {"user": FIRST_USER + number if self.as_root else None,
                   "memory": self.limits.memory, "seconds": int(self.limits.seconds) + 1,
                   "filter": self.is_fenced}
        try:
            pid = self.ask(request, [theirs.fileno(), written])
        finally:
            theirs.close()
            os.close(written)
        ours.setblocking(False)
        os.set_blocking(output, False)
        return RankHandle(pid, ours, output)

    def end(self, rank: RankHandle) -> int:
        """End a rank with all that it started; return its exit status."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(rank.pid, signal.SIGKILL)
        rank.pipe.close()
        os.close(rank.output)
        return self.ask({"reap": rank.pid})
