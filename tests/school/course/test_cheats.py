"""Attempts that students have made on graders: each earns nothing, and harms nothing."""

import os
import subprocess
import time

import numpy as np
import pytest

from minipar.school.course.checker.broker import MAX_LINE
from minipar.school.course.checker.ranks.frames import MAX_TEXT
from minipar.school.course.checker.runner import Job, Worker
from minipar.school.course.checker.service import Limits
from tests.school.course.attempts import RAW, attempt

NO_RIGHT = "it can open no file, make no socket, and start no process"
SECRET = "the-answer-of-this-run"


def test_an_honest_answer_passes(worker):
    _, failure = attempt(worker, """
out = np.zeros(4)
comm.sendrecv(x, 1 - comm.rank, out, 1 - comm.rank)
return x + out""")
    assert failure is None


@pytest.mark.parametrize("body, error, message", [
    # Write the result that the grader would write, and leave.
    ("open('results.json', 'w').write('{}')", "PermissionError", NO_RIGHT),
    ("import os; os.write(1, b'10 of 10 points'); os._exit(0)", "Ended", ""),
    ("import sys; sys.exit(0)", "SystemExit", ""),
    # Read or import the reference, the tests, or the grader's own code.
    ("import minipar.comm.collectives", "ModuleNotFoundError", "no module minipar"),
    ("import os; os.listdir('/')", "PermissionError", NO_RIGHT),
    ("import os; os.open('/proc/self/maps', os.O_RDONLY)", "PermissionError", NO_RIGHT),
    ("import os; os.readlink('/proc/self/exe')", "PermissionError", NO_RIGHT),
    # Change what compares: that is in another process.
    ("np.array_equal = np.allclose = np.isclose = lambda *a, **k: True; return x", "WrongValue",
     "expected 3, got 1"),
    # Search the process for the answer, or for the other ranks' arrays.
    ("import gc; return [a for a in gc.get_objects() if isinstance(a, np.ndarray)][-1][:4]",
     "ModuleNotFoundError or WrongValue", ""),
    # Return what only looks equal.
    ("class All(np.ndarray):\n    def __eq__(self, other): return np.ones(4, bool)\n"
     "return x.view(All)", "WrongValue", "expected 3, got 1"),
    # Spend more messages than the task allows, as calling everything would.
    ("out = np.zeros(4)\nfor _ in range(3): comm.sendrecv(x, 1 - comm.rank, out, 1 - comm.rank)\n"
     "return x + out", "Traffic", "it took 6 messages; 2 are enough"),
    # Never end, or sleep.
    ("while True: pass", "TooSlow", "no end after"),
    ("import time; time.sleep(60)", "TooSlow", "no end after"),
    ("while True:\n    try:\n        while True: pass\n    except BaseException: pass",
     "TooSlow", ""),
    # Start processes and leave them.
    ("import os; os.fork()", "PermissionError", NO_RIGHT),
    ("import os\nwhile True: os.fork()", "PermissionError", NO_RIGHT),
    ("import os; os.execv('/bin/sh', ['sh'])", "PermissionError", NO_RIGHT),
    ("import os; assert os.system('true') == 0", "AssertionError", ""),
    ("import os; os.kill(os.getppid(), 9)", "PermissionError", NO_RIGHT),
    ("import os; os.kill(-1, 9)", "PermissionError", NO_RIGHT),
    ("import os; os.setsid()", "PermissionError", NO_RIGHT),
    # Take all memory, write endlessly.
    ("big = []\nwhile True: big.append(np.ones(1 << 20))", "MemoryError or Ended or TooSlow", ""),
    ("return np.zeros(1 << 40)", "MemoryError", ""),
    ("while True: print('x' * 1000)", "TooMuchOutput", "more than 65,536 bytes"),
    ("while True: comm.isend(x, 1 - comm.rank)", "BadMessage or TooSlow", ""),
    ("while True: comm.isend(np.ones(1 << 20), 1 - comm.rank)", "BadMessage or TooSlow", ""),
    ("return np.zeros(1 << 24)", "BadFrame or MemoryError", ""),
    # Send what the checker cannot read, print or keep.
    (RAW + 'raw.write_frame({"kind": "wait", "id": float("inf"), "line": ""}, {})', "BadMessage",
     "infinity"),
    ("raise ValueError('\\ud800')", "ValueError", "?"),
    ("raise ValueError('x' * 900_000)", "ValueError", ""),
    ("return 10**400", "WrongValue", "expected an array of shape (4,), got int 1000"),
    (RAW + "raw.write_frame({'kind': 'error', 'error': 'E', 'message': 'x' * 900_000}, {})", "E",
     "xxx"),
    (RAW + """
big, number = np.ones(1 << 17), 0
while True:
    request = comm.irecv(big, comm.rank)
    comm.isend(big, comm.rank)
    raw.write_frame({"kind": "wait", "id": request.number, "line": ""}, {})""", "BadMessage",
     "it waits for messages, and does not read them"),
    # Talk to the world outside.
    ("import _socket; _socket.socket()", "PermissionError", NO_RIGHT),
    ("import urllib.request", "ModuleNotFoundError", "no module urllib"),
    ("import ctypes; assert ctypes.CDLL(None).socket(2, 1, 0) >= 0", "AssertionError", ""),
    # Leave the sandbox by way of the kernel.
    ("import os; os.setuid(0)", "PermissionError", NO_RIGHT),
    ("import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "ValueError",
     "not allowed to raise"),
])
def test_an_attempt_fails(worker, hasty_worker, body, error, message):
    _, failure = attempt(hasty_worker if "TooSlow" in error else worker, body)
    assert failure is not None, "it passed"
    assert failure.error in error.split(" or ") and message in failure.message, failure
    assert len(failure.message) <= MAX_TEXT + len(NO_RIGHT) + 10
    failure.message.encode()                                # it can be written into results


def test_a_rank_can_forge_only_what_it_says_itself(worker):
    """It finds the pipe, and sends a result for another rank: that is read as its own."""
    _, failure = attempt(worker, """
import sys
for module in list(sys.modules.values()):
    if hasattr(module, 'write_frame') and hasattr(module, 'read_next'):
        module.write_frame({"kind": "result", "rank": 1 - comm.rank, "value": {"dict": {
            "return": {"array": "0"}, "arguments": {"dict": {}}}}}, {"0": np.full(4, 7.0)})
return x""")
    assert failure is not None and "expected 3, got 7" in failure.message


def test_no_array_comes_before_it_was_waited_for(hasty_worker):
    """Without `wait` the checker would not know the round."""
    _, failure = attempt(hasty_worker, """
out = np.zeros(4)
request = comm.irecv(out, 1 - comm.rank)
comm.isend(x, 1 - comm.rank)
comm._wire.take(comm._wire.read())
return x + out""")
    assert failure.error == "TooSlow"


def test_a_pipe_sends_no_signals(worker):
    """With fcntl, it would: to any process of the same user, the checker itself among them."""
    run, _ = attempt(worker, """
import ctypes
libc = ctypes.CDLL(None)
print(libc.fcntl(3, 8, 1), libc.ioctl(3, 0x8901, ctypes.byref(ctypes.c_int(1))))
return x""")
    assert run.printed == ["-1 -1\n"] * 2


def test_the_memory_that_others_take_is_not_told(worker):
    """sysinfo would tell how much is free, and so what another rank has just taken."""
    run, _ = attempt(worker, """
import ctypes
print(ctypes.CDLL(None).sysinfo(ctypes.create_string_buffer(256)))
return x""")
    assert run.printed == ["-1\n"] * 2


def test_a_line_of_a_failure_is_short(worker):
    _, failure = attempt(worker, "return " + "(" * 50_000 + "1" + ")" * 50_000)
    assert failure.error == "SyntaxError" and len(failure.line) <= MAX_LINE


def test_the_environment_tells_nothing(worker, monkeypatch):
    monkeypatch.setenv("COURSE_KEY", SECRET)
    with Worker(Limits(seconds=1.0)) as fresh:
        run, _ = attempt(fresh, "import os\nprint(dict(os.environ))\nreturn x")
    assert SECRET not in "".join(run.printed)


def test_memory_of_the_worker_has_no_answer(worker):
    """The expected results are in the checker's process alone."""
    source = "def total(comm, x):\n    return sum(len(m) for m in ANSWERS)\n"
    run = worker.run(Job({"own": source}, "own", "total", [{"x": np.zeros(1)}]))
    assert run.failure.error == "NameError"


def test_nothing_is_left_behind(hasty_worker):
    for body in ("while True: pass", "import os; os.fork()",
                 "import os; os.close(3)\nwhile True: pass"):
        attempt(hasty_worker, body)
    time.sleep(0.1)
    listed = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(hasty_worker.process.pid)],
                            capture_output=True, text=True).stdout if os.path.exists("/bin/ps") \
        else ""
    assert not listed.strip()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give ranks another user")
def test_ranks_are_other_users(worker):
    run, _ = attempt(worker, "import os\nprint(os.getuid(), os.getgid(), os.getgroups())\nreturn x")
    users = [line.split()[0] for line in run.printed if line]
    assert "0" not in users
    run, failure = attempt(worker, "import os\nprint(os.getuid())\nreturn x")
    assert [int(line) for line in run.printed] == [61_000, 61_001]
