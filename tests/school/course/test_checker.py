"""The checker: ranks that exchange messages through the broker, and every way to fail."""

import numpy as np
import pytest

from minipar.school.course.checker.broker import Delivery
from minipar.school.course.checker.compare import differ, too_much, totals
from minipar.school.course.checker.outcome import Outcome, as_text, describe
from minipar.school.course.checker.ranks import frames
from minipar.school.course.checker.ranks.values import decode, encode
from minipar.school.course.checker.runner import Job, Worker
from minipar.school.course.checker.service import Limits

RING = """
def gather(comm, mine, out):
    p = comm.size
    out[comm.rank] = mine
    for k in range(p - 1):
        comm.sendrecv(out[(comm.rank - k) % p], (comm.rank + 1) % p,
                      out[(comm.rank - k - 1) % p], (comm.rank - 1) % p)
"""


def call(worker, source, function="f", ranks=2, **arguments):
    """Run a function on some ranks, each with the same arguments."""
    return worker.run(Job({"own": source}, "own", function,
                          [dict(arguments) for _ in range(ranks)]))


def fails(worker, body, error, message="", ranks=2, **arguments):
    """Check that a function of this body fails so; return the failure."""
    names = ", ".join(["comm", *arguments])
    lines = "\n    ".join(body.strip().split("\n"))
    failure = call(worker, f"import numpy as np\ndef f({names}):\n    {lines}\n", ranks=ranks,
                   **arguments).failure
    assert failure is not None, "it passed"
    assert failure.error == error and message in failure.message, failure
    return failure


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_a_ring(worker, p):
    arguments = [{"mine": np.full(3, float(r)), "out": np.zeros((p, 3))} for r in range(p)]
    run = worker.run(Job({"own": RING}, "own", "gather", arguments))
    assert run.failure is None
    for result in run.results:
        assert np.array_equal(result["arguments"]["out"][:, 0], np.arange(p))
    assert totals(run.messages) == {"messages": p * (p - 1), "bytes": 24 * p * (p - 1),
                                    "rounds": p - 1, "bytes_of_a_rank": 24 * (p - 1)}


def test_nonblocking_messages_match_in_order_of_posting(worker):
    run = call(worker, """
import numpy as np
def f(comm):
    if comm.rank == 0:
        requests = [comm.isend(np.array([i]), 1, tag=i % 2) for i in range(6)]
        for request in reversed(requests):
            request.wait()
        return None
    out = [np.zeros(1, int) for _ in range(6)]
    requests = [comm.irecv(out[i], 0, tag=i % 2) for i in (5, 3, 1, 4, 2, 0)]
    for request in requests:
        request.wait()
    return [int(array[0]) for array in out]
""")
    assert run.failure is None
    assert run.results[1]["return"] == [4, 5, 2, 3, 0, 1]


def test_split_makes_groups_with_messages_of_their_own(worker):
    run = call(worker, """
import numpy as np
def f(comm):
    row = comm.split(comm.rank // 3, key=-comm.rank)
    out = np.zeros(1, int)
    row.sendrecv(np.array([comm.rank]), (row.rank + 1) % row.size, out, (row.rank - 1) % row.size)
    none = comm.split(None if comm.rank else 0)
    return row.rank, row.size, int(out[0]), none is None
""", ranks=6)
    assert [result["return"] for result in run.results] == [
        (2, 3, 1, False), (1, 3, 2, True), (0, 3, 0, True),
        (2, 3, 4, True), (1, 3, 5, True), (0, 3, 3, True)]


def test_a_deadlock_is_found_at_once_and_names_each_line(worker):
    failure = fails(worker, "out = np.zeros(2)\ncomm.recv(out, 1 - comm.rank)", "Deadlock")
    assert "rank 0 waits to receive 16 bytes from rank 1 at own.py:4" in failure.message
    assert "rank 1 waits to receive 16 bytes from rank 0 at own.py:4" in failure.message


def test_a_rank_that_has_ended_is_named_in_the_deadlock(worker):
    failure = fails(worker, "if comm.rank: comm.recv(np.zeros(1), 0)", "Deadlock")
    assert "rank 0 ended before" in failure.message


@pytest.mark.parametrize("body, error, message", [
    ("comm.send(np.zeros(3), 1 - comm.rank) if comm.rank else comm.recv(np.zeros(2), 1)",
     "ValueError", "the message has 3 × float64, but the array to receive into has 2 × float64"),
    ("comm.send([1], 0)", "TypeError", "a message is a NumPy array, not a list"),
    ("comm.send(np.zeros(1), 2)", "ValueError", "dest=2 is no rank of this communicator"),
    ("comm.send(np.zeros(1), 0, tag=-1)", "ValueError", "tag=-1"),
    ("comm.isend(np.zeros(1), 1 - comm.rank)", "LostMessage", "never does the other half"),
    ("1 / 0", "ZeroDivisionError", "division by zero"),
    ("while True: pass", "TooSlow", "no end after 0.3 s"),
    ("print('x' * 70_000)", "TooMuchOutput", "more than 65,536 bytes"),
    ("return np.array([None])", "BadFrame", "only numbers and bools"),
    ("return object()", "TypeError", "a object cannot be an argument or a result"),
    ("return f(comm)", "RecursionError", ""),
    ("import os; os._exit(0)", "Ended", "ended before the function returned"),
    ("import sys; sys.exit(0)", "SystemExit", ""),
    ("import torch", "ModuleNotFoundError", "there is no module torch here"),
    ("for _ in range(17): comm.split(0)", "BadMessage", "more than 16 splits"),
])
def test_what_fails(worker, hasty_worker, body, error, message):
    fails(hasty_worker if error == "TooSlow" else worker, body, error, message)


def test_a_syntax_error_and_a_missing_function_are_told(worker):
    assert call(worker, "def f(comm:\n").failure.line.startswith("own.py:1")
    failure = call(worker, "def g(comm): pass").failure
    assert failure.message == "own.py has no function f: write it there"


def test_the_line_of_an_endless_loop(hasty_worker):
    assert fails(hasty_worker, "n = 1\nwhile n: n += 1", "TooSlow").line in ("own.py:4", "own.py:3")


def test_a_time_out_shows_what_was_printed_and_no_stack(hasty_worker):
    """The stack tells the line; it also has the paths of the machine that grades."""
    run = call(hasty_worker, "def f(comm):\n    print('begun', flush=True)\n    while True: pass")
    assert run.failure.error == "TooSlow" and run.failure.line == "own.py:3"
    assert run.printed[run.failure.rank] == "begun\n"


def test_the_line_of_a_message_is_one_of_the_submission(worker):
    run = call(worker, """
import functools, heapq, numpy as np
class Key:
    def __init__(self, comm): self.comm = comm
    def __lt__(self, other): self.comm.recv(np.zeros(1), 1 - self.comm.rank)
def f(comm):
    heapq.nsmallest(2, [Key(comm), Key(comm)])
""")
    assert run.failure.error == "Deadlock" and "/" not in run.failure.message


def test_what_is_printed_comes_back(worker):
    run = call(worker, "def f(comm):\n    print('rank', comm.rank)\n    return 1")
    assert run.printed == ["rank 0\n", "rank 1\n"] and run.failure is None


def test_parts_of_numpy_that_are_imported_when_needed(worker):
    run = call(worker, """
from __future__ import annotations
import numpy as np
def f(comm, x):
    return [np.quantile(x, 0.5), np.median(x), float(np.ma.array(x, mask=x > 1).sum()),
            np.polynomial.Polynomial([0, 1])(2.0)]
""", x=np.arange(3.0))
    assert run.failure is None and run.results[0]["return"] == [1.0, 1.0, 1.0, 2.0]


def test_a_report_holds_no_command_for_a_terminal(worker):
    failure = call(worker, "def f(comm): raise ValueError('\\x1b[2J\\x9b1m5 points')").failure
    outcome = Outcome("f", 0, "2 ranks", 2, 1, False, "seed 1", 0.1, failure, "\x1b[1mhello\a")
    assert describe(outcome).split("\n")[-1] == "printed: [1mhello"
    assert all(c == "\n" or c.isprintable() for c in as_text([outcome]))


def test_one_bad_run_costs_no_other(worker):
    for _ in range(3):
        fails(worker, "import os; os._exit(3)", "Ended")
        assert call(worker, "def f(comm): return comm.rank").results[1]["return"] == 1


def test_values_travel_whole():
    arrays = {}
    value = {"a": [np.arange(3), (1, 2.5, None, True, "x", float("inf"))], "b": np.float32(2)}
    back = decode(encode(value, arrays), arrays)
    assert np.array_equal(back["a"][0], np.arange(3)) and back["a"][1] == value["a"][1]
    assert back["b"] == 2.0


@pytest.mark.parametrize("fields, data, message", [
    ('{"arrays": [["x", "|O", [1]]]}', b"12345678", "dtype '|O'"),
    ('{"arrays": [["x", "<f8", [1000000000000]]]}', b"", "fewer bytes"),
    ('{"arrays": [["x", "<f8", [-1]]]}', b"", "shape [-1]"),
    ('{"arrays": [["x", "<f8", [' + "9, " * 99 + "9]]]}", b"", "shape [9, 9"),
    ('{"arrays": []}', b"1", "left over"),
    ("[1]", b"", "not a frame"), ("{", b"", "not a frame"),
    ("[" * 100_000, b"", "not a frame"),
])
def test_a_frame_of_untrusted_bytes_is_refused(fields, data, message):
    with pytest.raises(frames.BadFrame, match=message.replace("[", r"\[").replace("|", r"\|")):
        frames.unpack(fields.encode(), data)


def test_a_frame_that_is_too_large_is_refused_before_it_is_read():
    with pytest.raises(frames.BadFrame, match="bytes at once"):
        frames.Assembler().feed(frames.HEAD.pack(10, 1 << 40))


@pytest.mark.parametrize("wanted, found, sentence", [
    (np.arange(3.0), np.arange(3.0) + 1e-12, ""),
    (np.arange(3.0), np.array([0, 1, 2.5]), "x at index 2: expected 2, got 2.5 (1 of 3 numbers"),
    (np.arange(3), np.arange(4), "x: expected shape (3,), got (4,)"),
    (np.arange(3), np.arange(3.0), "x: expected dtype int64, got float64"),
    (np.arange(3.0), None, "x: expected an array of shape (3,), got NoneType None"),
    ([1, 2], (1, 2), ""), ([1, 2], [1, 3], "x[1]: expected 2, got int 3"),
    ((1, 2), [1], "x: expected 2 values, got list [1]"),
    ({"a": 1.0}, {"a": 1.0}, ""), ({"a": 1.0}, {"b": 1.0}, "x: expected a dict with a"),
    (np.array([1, np.inf]), np.array([7, np.inf]), "x at index 0: expected 1, got 7"),
    (np.array([1, np.nan]), np.array([1 + 1e-12, np.nan]), ""),
    (0.5, 10**400, "x: expected an array of shape (), got int 1000"),
    (True, 1, "x: expected True, got int 1"), (np.zeros(2), np.full(2, np.nan), "got nan"),
])
def test_comparison(wanted, found, sentence):
    said = differ("x", wanted, found, 1e-9)
    assert (sentence in said) if sentence else not said, said


def test_a_difference_in_the_last_bit_is_shown():
    """Two equal numbers would tell nothing to a student who added in another order."""
    said = differ("x", np.array([0.3]), np.array([0.1 + 0.2]), 0.0)
    assert said.startswith("x at index 0: expected 0.29999999999999999, got 0.30000000000000004")


def test_traffic():
    messages = [Delivery(0, 1, 8, 1), Delivery(1, 2, 8, 2)]
    assert too_much(messages, {"messages": 2, "bytes": 16, "rounds": 2}) == ""
    assert "it took 2 rounds; 1 are enough" in too_much(messages, {"rounds": 1})
    assert "rank 1 sent 8 bytes to rank 2" in too_much(messages, {"pairs": [(0, 1)]})


def test_without_a_sandbox_it_still_checks():
    with Worker(Limits(seconds=1.0), fenced=False) as started:
        assert call(started, "def f(comm): return comm.rank").results[1]["return"] == 1
