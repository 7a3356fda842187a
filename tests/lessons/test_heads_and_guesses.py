"""Drawings in the heads of lessons, and the numbers that answer what a page lets one guess."""

import math
import re

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_to_all
from minipar.parallel.pipeline.schedule.schedules import gpipe, one_f_one_b
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.parallel.pipeline.schedule.zero_bubble import zb_h1
from tests.lessons.test_answers import PAGES, says

LESSONS = PAGES.parents[1] / "lessons"


@pytest.mark.parametrize(("lesson", "name", "make", "length"), [
    ("12_gpipe_and_1f1b", "GPipe", gpipe, 15), ("12_gpipe_and_1f1b", "1F1B", one_f_one_b, 15),
    ("13_interleaved_and_zero_bubble", "1F1B", one_f_one_b, 15),
    ("13_interleaved_and_zero_bubble", "ZB-H1", zb_h1, 13)])
def test_the_drawing_is_the_schedule(lesson, name, make, length):
    """A backward, I and W together, takes twice as long as a forward."""
    head = (LESSONS / f"{lesson}.py").read_text("utf-8").split('"""')[1]
    line = r"rank {} +(.+?)(?: {{4}}.*)?\n"                # words may follow after four spaces
    drawn = re.search(rf"{name} +{line.format(0)} +{line.format(1)}", head).groups()
    timeline = simulate(make(2, 4), Times(1, 1, 1))
    for row, cells in zip(timeline.rows(), drawn):
        slots = ["·"] * length
        for interval in row:
            for slot in range(round(interval.start), round(interval.end)):
                slots[slot] = f"{interval.kind}{interval.microbatch}"
        assert cells.split() == slots
    assert timeline.makespan() == length


def test_05_who_was_heard():
    says("05", "the 2ᵏ − 1 ranks before it", "ranks r − 2ᵏ + 1 … r")
    p = 11
    heard = [{r} for r in range(p)]
    for k in range(math.ceil(math.log2(p))):
        heard = [mine | heard[(r - 2**k) % p] for r, mine in enumerate(heard)]
        others = min(2**(k + 1), p) - 1
        assert [mine - {r} for r, mine in enumerate(heard)] == [
            {(r - i) % p for i in range(1, others + 1)} for r in range(p)]


def test_05_messages_of_eight_ranks():
    seen = {}
    for algorithm in ("pairwise", "bruck"):
        cluster = Cluster(8, trace=True)
        cluster.run(lambda comm, name=algorithm: all_to_all(
            comm, np.zeros(8 * 1000, np.uint8), algorithm=name))
        sent = sum(m.num_bytes for m in cluster.trace.select(0)) // 1000
        seen[algorithm] = cluster.trace.num_sent(), sent
    assert seen == {"pairwise": (56, 7), "bruck": (24, 12)}
    says("05", "8 · 7 = 56 messages", "7 rounds, 7 KB from each rank", "8 · 3 = 24 messages",
         "12 KB from each rank")


def test_numbers_of_guesses():
    says("00", f"{16 * 7:.0f} GB", f"{round(8.4e22 / (0.4 * 312e12) / 86400, -1):,.0f} days")
    says("02", "chain 130 µs")
    assert pytest.approx(130, abs=0.1) == (8 + 20 - 2) * (5 + 640 * 1e-4 / 20)
    says("03", "these are 7 MB", "3 for p = 8")
    says("08", f"would add {1000 * 2 * 3 * 5e-3:.0f} ms", "those of the last bucket show")
    one = 2 * 16 * 24 + 24 + 16
    says("17", f"the {one} of one MLP", f"and {16 * 8} of the router", "3/4 of its rows")
    assert (8 * one + 128, 2 * one + 128) == (6592, 1744)
    says("23", f"{4 * 256 * 8:,} bytes of counts", f"the weights are {4 * 17024:,}",
         f"{68904 / 16556:.1f} times less")
    p = math.exp(math.log(3) / 10)
    says("25", f"p = ({p / (1 + p):.3f}, {1 / (1 + p):.3f})")
