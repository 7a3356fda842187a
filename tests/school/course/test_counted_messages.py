"""Ways to tell another rank something for nothing: every message fits its receive, and counts."""

import numpy as np
import pytest

from minipar.school.course.checker.broker import HEADER, Delivery
from minipar.school.course.checker.compare import judge, too_much, totals
from minipar.school.course.grading.assignment import names_in
from minipar.school.course.grading.tasks import ASSIGNMENTS, variants
from tests.school.course.attempts import RAW, attempt

NAMES = names_in(ASSIGNMENTS)


def test_the_shape_of_an_empty_message_tells_nothing(worker):
    run, failure = attempt(worker, RAW + """
shapes = []
def complete(request, frame):
    request.is_done = True
    shapes.extend(array.shape for array in frame.arrays.values())
sys.modules[type(comm).__module__].PendingRequest.complete = complete
comm.sendrecv(np.zeros((0, int(x[0]))), 1 - comm.rank, np.zeros(0), 1 - comm.rank)
return x + shapes[0][-1]""")
    assert totals(run.messages)["bytes"] == 0 and failure.error == "WrongValue"


RECEIVED = RAW + """
seen = []
def complete(request, frame):
    request.is_done = True
    seen.extend(frame.arrays.values())
sys.modules[type(comm).__module__].PendingRequest.complete = complete
"""


@pytest.mark.parametrize("body", [
    # The dtype of a message, or its length, where the receive was posted for another one.
    RECEIVED + "comm.sendrecv(np.zeros(0, ['i1', 'i2', 'i4'][int(x[0])]), 1 - comm.rank, "
    "np.zeros(0), 1 - comm.rank)\nreturn x + seen[-1].itemsize",
    RECEIVED + "comm.sendrecv(np.zeros(int(x[0]), 'i1'), 1 - comm.rank, np.zeros(0, 'i1'), "
    "1 - comm.rank)\nreturn x + seen[-1].size",
    RECEIVED + "comm.sendrecv(np.zeros(8, 'i1'), 1 - comm.rank, np.zeros(1), 1 - comm.rank)\n"
    "return x + seen[-1].size",
    # The same without a change of the communicator: from the words of the exception.
    """
try:
    comm.sendrecv(np.zeros(int(x[0])), 1 - comm.rank, np.zeros(9), 1 - comm.rank)
except ValueError as error:
    return x + int(str(error).split()[3])"""])
def test_only_a_message_of_the_posted_size_and_dtype_arrives(worker, body):
    _, failure = attempt(worker, body)
    assert failure.error == "ValueError" and failure.message.startswith("the message has "), failure
    assert failure.line.startswith("own.py:")


def test_a_receive_cannot_be_posted_for_an_unknown_dtype(worker):
    _, failure = attempt(worker, RAW + "raw.write_frame({'kind': 'recv', 'group': 0, 'peer': 0, "
                         "'tag': 0, 'size': 1, 'dtype': 'none', 'id': 1, 'line': ''}, {})")
    assert failure.error == "BadMessage"


def test_messages_without_content_are_counted():
    """Which of them comes first tells something; each counts as if it had HEADER bytes."""
    empty = [Delivery(0, 1, 0, 1)] * 3
    assert too_much(empty, {"bytes": 48}) == ""
    assert "it took 48 bytes; 47 are enough" in too_much(empty, {"bytes": 47})
    assert too_much(empty, {"bytes": 0, "messages": 3}) == ""


def test_every_task_that_limits_bytes_counts_messages_without_content():
    for task in (task for name in NAMES for task in variants(ASSIGNMENTS / name / "tasks.toml")):
        for case in task.cases:
            limits = task.traffic(task.arguments(case, 1), case)
            if "bytes" in limits:
                most = max(int(limits["bytes"]) // HEADER, limits.get("messages", 0))
                limits["pairs"] = [(0, 1)]
                assert too_much([Delivery(0, 1, 0, 1)] * (most + 1), limits), (task.name, case)


def test_the_sizes_of_groups_are_no_messages(worker):
    run, failure = attempt(worker, """
return x + (comm.split(None if comm.rank else 0) is None)""")
    assert run.num_splits == 2 and failure.error == "WrongValue"
    run, _ = attempt(worker, "comm.split(0)\nreturn np.full(4, 3.0)")
    failure, _ = judge(run, [{"return": np.full(4, 3.0)}] * 2, {"bytes": 0, "splits": 0}, 1e-9)
    assert failure.error == "Traffic" and "split tells about the other ranks" in failure.message
