"""The worker: a clean process that forks itself into one rank after another.

    stdin is a socket: requests come in; process numbers and exit statuses go out

The worker has imported NumPy and nothing of the assignment.  So its copies find no answer in their
memory, and are ready in milliseconds.  A copy enters the sandbox, then reads its job: the source of
the submission, the name of a function, and its arguments.
"""

import faulthandler
import importlib.abc
import importlib.util
import json
import linecache
import os
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from . import sandbox
from .communicator import CheckerPipe, Communicator
from .frames import Assembler, Frame, pack
from .values import decode, encode

# What a submission may import, beside its own files: a rank can open no file.  NumPy imports some
# of its parts when they are first needed: np.quantile needs numpy.ma.
OFFERED = ("__future__", "abc", "bisect", "cmath", "collections", "collections.abc", "contextlib",
           "copy", "dataclasses", "enum", "fractions", "functools", "heapq", "itertools", "math",
           "numbers", "numpy", "numpy.char", "numpy.fft", "numpy.lib.stride_tricks",
           "numpy.linalg", "numpy.ma", "numpy.polynomial", "numpy.random", "operator", "pprint",
           "random", "statistics", "string", "textwrap", "time", "types", "typing")
NO_RIGHT = (" (a submission computes and sends messages: it can open no file, make no socket, and "
            "start no process)")
FRAMES = 3                          # the file descriptor of a rank's pipe to the checker
PIECE = 1 << 16                     # bytes read at once
assembler = Assembler()
arrived: deque[Frame] = deque()     # frames that are whole, not read yet


class SubmissionImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the files of a submission from memory, and nothing else that is not loaded yet."""

    def __init__(self, files: dict[str, str]):
        self.files = files

    def find_spec(self, fullname: str, path: Sequence[str] | None,
                  target: ModuleType | None = None) -> Any:
        """A spec for a file of the submission.  Raises ModuleNotFoundError for anything else."""
        if fullname in self.files:
            return importlib.util.spec_from_loader(fullname, self)
        raise ModuleNotFoundError(
            f"there is no module {fullname} here: NumPy, the standard library's modules for "
            f"computing ({', '.join(name for name in OFFERED if '.' not in name)}), and the "
            "assignment's own files can be imported")

    def exec_module(self, module: ModuleType) -> None:
        """Run a file of the submission."""
        file, text = f"{module.__name__}.py", self.files[module.__name__]
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)  # for tracebacks
        exec(compile(text, file, "exec"), vars(module))


def main() -> None:
    """Serve requests until the checker closes the socket."""
    for name in OFFERED:
        importlib.import_module(name)
    control = socket.socket(fileno=os.dup(0))
    control.send(json.dumps("ready").encode())
    while True:
        request, fds, _, _ = socket.recv_fds(control, 4096, 2)
        if not request:
            os._exit(0)
        job = json.loads(request)
        if "reap" in job:
            _, status = os.waitpid(job["reap"], 0)
            control.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            become_rank(job, *fds)
        for fd in fds:
            os.close(fd)
        control.send(json.dumps(pid).encode())


def become_rank(job: dict[str, Any], pipe: int, output: int) -> None:
    """Run a job as a rank, then exit; `pipe` leads to the checker, prints go to `output`."""
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, number in ((null, 0), (output, 1), (output, 2), (pipe, FRAMES)):
            os.dup2(fd, number)
        os.closerange(FRAMES + 1, 4096)
        faulthandler.register(signal.SIGUSR1, all_threads=False)    # sent when time is over
        sandbox.enter(job["user"], job["memory"], job["seconds"], job["filter"])
    except OSError as error:
        os.write(FRAMES, pack({"kind": "refused", "why": str(error)}))
        os._exit(1)
    wire = CheckerPipe(write_frame, read_next)
    run(read_next(), wire)
    os._exit(0)


def run(job: Frame, wire: CheckerPipe) -> None:
    """Import the submission, call the function, and send its result or its exception."""
    files = job.fields["files"]
    sys.path[:] = []
    sys.meta_path[:] = [SubmissionImporter(files), *sys.meta_path]
    try:
        arguments = decode(job.fields["arguments"], job.arrays)
        if job.fields["size"] is not None:
            arguments["comm"] = Communicator(wire, job.fields["rank"], job.fields["size"])
        function = find(job.fields["module"], job.fields["function"])
        result = function(**arguments)
        changed = {name: value for name, value in arguments.items() if name != "comm"}
        arrays: dict[str, np.ndarray] = {}
        tree = encode({"return": result, "arguments": changed}, arrays)
        sys.stdout.flush()
        write_frame({"kind": "result", "value": tree}, arrays)
    except BaseException as error:          # SystemExit, too: it is the function that ended
        sys.stdout.flush()
        write_frame({"kind": "error", "error": type(error).__name__,
                     "message": str(error)[:4000] + NO_RIGHT * isinstance(error, PermissionError),
                     "line": line_of(error, files)}, {})


def find(module: str, function: str) -> Callable[..., Any]:
    """The function to call.  Raises LookupError, in one line, if the submission has none."""
    found = getattr(importlib.import_module(module), function, None)
    if not callable(found):
        raise LookupError(f"{module}.py has no function {function}: write it there")
    return found


def line_of(error: BaseException, files: dict[str, str]) -> str:
    """The innermost line of the submission in an exception's traceback, as "file:line: text"."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {(error.text or '').strip()}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__)
           if frame.filename.removesuffix(".py") in files]
    return f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else ""


def write_frame(fields: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Send a frame to the checker."""
    rest = memoryview(pack(fields, arrays))
    while rest:
        rest = rest[os.write(FRAMES, rest):]


def read_next() -> Frame:
    """The next frame from the checker; the process ends if there is none."""
    while not arrived:
        data = os.read(FRAMES, PIECE)
        if not data:
            os._exit(1)
        arrived.extend(assembler.feed(data))
    return arrived.popleft()


if __name__ == "__main__":
    main()
