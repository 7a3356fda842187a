"""Questions that say "write `NEW` in place of `OLD`": the change is made, and the answer is true.

Each lesson in the form of test_form.py has one.  A check here is given what the changed script
defines.
"""

import re
import sys

import numpy as np
import pytest

from minipar.comm import Cluster, Deadlock
from tests.lessons.test_answers import questions_of, says
from tests.lessons.test_form import ROOT, SCRIPTS

CHANGE = re.compile(r"write `(?P<new>[^`]+)` in place of `(?P<old>[^`]+)`")


def check_12(names):
    """1F1B hangs, with the circle that the page names; GPipe does not."""
    def run(schedule):
        width, rows, m = names["WIDTH"], names["ROWS"], names["M"]

        def body(comm):
            stage = names["Stage"](comm, np.eye(width), np.ones((m, rows, width)),
                                   np.zeros((m, rows), int))
            schedule(stage, m)
        Cluster(4).run(body)
    run(names["gpipe"])
    with pytest.raises(Deadlock) as report:
        run(names["one_f_one_b"])
    assert waits(report) == {0: ("send", 1), 1: ("send", 2), 2: ("send", 3), 3: ("send", 2)}
    says("12", "1F1B hangs. Rank 3 has done F0 and is in B0", "But rank 2 is in F1")


def check_04(names):
    """Two ranks get the sum, 4 get 2 times, 8 get 16 times the sum."""
    for p, times in ((2, 1), (4, 2), (8, 16)):
        def body(comm):
            x = np.arange(3.0) + comm.rank
            names["double"](comm, [*range(comm.size)], x)
            return x
        for total in Cluster(p).run(body)[0]:
            assert np.array_equal(total, times * (p * np.arange(3) + p * (p - 1) / 2))
    says("04", "every rank gets twice the sum", "16 times the sum")


def check_00(names):
    """Weights differ from one process and from rank to rank, on 4 ranks only; counts do not."""
    rng = np.random.default_rng(0)
    start, x, labels = rng.normal(0, 0.5, (3, 16, 16)), rng.random((60, 16)), np.arange(60) % 16

    def body(comm):
        weights = list(start.copy())
        return names["train"](comm, weights, x, labels), np.array(weights)
    (alone,), found = Cluster(1).run(body)[0], Cluster(4).run(body)[0]
    assert [kept for (_, kept), _ in found] == [alone[0][1]] * 4
    assert sum(flops for (flops, _), _ in found) == alone[0][0]
    assert all(np.abs(weights - alone[1]).max() > 1e-3 for _, weights in found)
    assert all(np.abs(weights - found[0][1]).max() > 1e-3 for _, weights in found[1:])
    says("00", "the last row fails, on every rank", "its own 15 rows", "On one rank nothing fails")


def check_01(names):
    """It ends, after p rounds, with what the left rank has."""
    for p in (2, 3, 4, 7):
        found, rounds = Cluster(p, latency=1, bandwidth=np.inf).run(
            lambda comm: names["in_turn"](comm, np.full(3, comm.rank))[0])
        assert found == [(rank - 1) % p for rank in range(p)] and rounds == p
    says("01", "It still ends", "but after p rounds")


def check_02(names):
    """It ends, after 9 rounds, with rank 0's numbers."""
    def body(comm):
        names["chain"](comm, x := np.arange(8.0) * (comm.rank == 0), 4)
        return x.sum()
    found, rounds = Cluster(4, latency=1, bandwidth=np.inf).run(body)
    assert found == [28] * 4 and rounds == 9
    says("02", "It does not hang", "(p − 1) + 2 (k − 1) = 9 in all", "p + k − 2 = 6")


def check_03(names):
    """Two ranks have both rows; of four each waits to receive from the next."""
    def body(comm):
        rows = np.arange(comm.size)[:, None] * (np.arange(comm.size) == comm.rank)[:, None]
        names["doubling"](comm, rows)
        return rows.ravel().tolist()
    assert Cluster(2).run(body)[0] == [[0, 1]] * 2
    with pytest.raises(Deadlock) as report:
        Cluster(4).run(body)
    assert waits(report) == {r: ("receive", (r + 1) % 4) for r in range(4)}
    says("03", "On 2 ranks nothing changes", "each rank waits to receive from the next")


def check_05(names):
    """It ends; only ranks 4, 6 and 7 wait for rank 3, if messages are buffered."""
    def body(comm):
        if comm.rank == 3:
            comm.report_compute("compute", int(comm.cluster.flops_per_second), 0, 0.0)  # 1 s late
        names["barrier"](comm)
        return comm.now() >= 1
    buffered, taken = (Cluster(8, eager=limit).run(body)[0] for limit in (1, 0))
    assert [rank for rank, waited in enumerate(buffered) if waited] == [3, 4, 6, 7] and all(taken)
    says("05", "It does not hang", "only ranks 4, 6 and 7 hear of it", "all wait for rank 3")


CHECKS = {0: check_00, 1: check_01, 2: check_02, 3: check_03, 4: check_04, 5: check_05,
          12: check_12}


def waits(report) -> dict[int, tuple[str, int]]:
    """What each rank waits for, by the report of a deadlock: (send or receive, the peer)."""
    found = re.findall(r"rank (\d+) waits to (send|receive) (?:to|from) rank (\d+)",
                       str(report.value))
    return {int(rank): (what, int(peer)) for rank, what, peer in found}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_changed_line(script, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "lessons")
    monkeypatch.setattr(sys, "argv", [str(script)])
    text = script.read_text("utf-8")
    changes = [match for question in questions_of(script) if (match := CHANGE.search(question))]
    assert changes, "a question changes a line"
    algorithm, main, rest = text.partition("\ndef main(")
    for change in changes:
        assert algorithm.count(change["old"]) == 1, change["old"]
        algorithm = algorithm.replace(change["old"], change["new"])
    names = {"__name__": script.stem, "__file__": str(script)}
    exec(compile(algorithm + main + rest, str(script), "exec"), names)
    CHECKS[int(script.name[:2])](names)
