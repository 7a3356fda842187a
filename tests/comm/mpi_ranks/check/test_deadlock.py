"""Who can never go on, from rows: only ranks for which nothing can come any more."""

import pytest

from minipar.comm.mpi.check.deadlock import (
    STEADY,
    describe_long_wait,
    describe_stuck,
    find_stuck,
)


def row(wait=None, answers=None, state="runs", line="a.py:1"):
    return {"state": state, "wait": wait, "answers": answers or {}, "line": line}


def waits(*alternatives, steps=STEADY, seconds=1.0, peer=None):
    """A wait for any of the alternatives, each a tuple of ranks of which all are needed."""
    return {"id": "w", "text": "to receive", "peer": peer, "label": "", "steps": steps,
            "seconds": seconds, "alternatives": [[[[peer], "…"] for peer in each]
                                                 for each in alternatives]}


def says(rank, *answers):
    """The answers to the wait of `rank`: for each alternative a tuple."""
    return {str(rank): ("w", [list(each) for each in answers])}


NO, YES = ((False,),), ((True,),)


@pytest.mark.parametrize(("rows", "stuck"), [
    ({0: row(waits((1,)), says(1, *NO)), 1: row(waits((0,)), says(0, *NO))}, {0, 1}),
    # rank 1 has sent what rank 0 waits for: it is under way, however long that takes
    ({0: row(waits((1,)), says(1, *NO)), 1: row(waits((0,)), says(0, *YES))}, set()),
    # rank 1 has not answered yet; or of an earlier wait
    ({0: row(waits((1,)), says(1, *NO)), 1: row(waits((0,)))}, set()),
    ({0: row(waits((1,)), says(1, *NO)),
      1: row(waits((0,)), {"0": ("before", [[False]])})}, set()),
    # rank 1 computes; has returned; waits only since a moment ago
    ({0: row(waits((1,))), 1: row(None, says(0, *NO))}, set()),
    ({0: row(waits((1,))), 1: row(None, says(0, *NO), state="left")}, {0}),
    ({0: row(waits((1,)), says(1, *NO)),
      1: row(waits((0,), steps=STEADY - 1), says(0, *NO))}, set()),
    # a chain that ends at a rank which computes; two ranks in a circle beside one that computes
    ({0: row(waits((1,))), 1: row(waits((2,)), says(0, *NO)), 2: row(None, says(1, *NO))}, set()),
    ({0: row(waits((1,)), says(1, *NO)), 1: row(waits((0,)), says(0, *NO)), 2: row()}, {0, 1}),
    # any of two is enough; both are needed
    ({0: row(waits((1,), (2,))), 1: row(None, says(0, (False,), (None,)), "left"),
      2: row()}, set()),
    ({0: row(waits((1, 2))), 1: row(None, says(0, (False, None)), "left"), 2: row()}, {0}),
    ({0: row(waits((1,), (2,))), 1: row(None, says(0, (False,), (None,)), "left"),
      2: row(None, says(0, (None,), (False,)), "left")}, {0}),
    # something of which nothing is known; a message to itself
    ({0: row(waits(()))}, set()),
    ({0: row(waits((0,)), says(0, *NO))}, {0})])
def test_who_is_stuck(rows, stuck):
    assert find_stuck(rows, set()) == stuck


def test_a_stopped_rank_answers_nothing():
    rows = {0: row(waits((1,), peer=1)), 1: row(line="b.py:2")}
    assert find_stuck(rows, {1}) == {0} and find_stuck(rows, set()) == set()
    said = describe_stuck(rows, {0}, {1: "is stopped"})
    assert said.splitlines()[:3] == [
        "deadlock: no rank can go on", "  rank 0 waits to receive, which is stopped, at a.py:1",
        "  rank 1 is stopped; seen last: computes at b.py:2"]


def test_the_report_says_which_ranks_if_others_run():
    rows = {0: row(waits((1,), peer=1)), 1: row(None, says(0, *NO), "left"), 2: row(line="c.py:3")}
    assert describe_stuck(rows, {0}, {}).splitlines()[:3] == [
        "deadlock: rank 0 cannot go on", "  rank 0 waits to receive, which has returned, at a.py:1",
        "  rank 2 computes at c.py:3"]


def test_a_long_wait_names_those_that_compute():
    rows = {0: row(waits((1,), seconds=9.0)), 1: row(line="b.py:2")}
    assert describe_long_wait(rows, 10) is None
    assert describe_long_wait(rows, 8).splitlines() == [
        "rank 0 waited for more than 8 s", "  rank 0 waits to receive at a.py:1",
        "  rank 1 computes at b.py:2", "MINIPAR_TIMEOUT=SECONDS sets the limit."]
