"""MINIPAR_CHECK=1: each mistake of a rank is reported once, with the rank and the line."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest

from minipar.environment import find_mpirun, mpirun_environment
from tests.support import mistakes
from tests.support.mistakes import MISTAKES, SAID, Case

pytestmark = pytest.mark.skipif(find_mpirun() is None,
                                reason="there is no mpirun: pip install '.[mpi]'")


class NoComm:
    """As much of a communicator as the drawing of numbers needs."""

    rank = 0

    def __init__(self, size: int):
        self.size = size


def report(name: str, seed: int, num_ranks: int) -> tuple[int, str]:
    """The exit status of a program with this mistake, and what it writes."""
    done = subprocess.run(
        [find_mpirun(), "-n", str(num_ranks), sys.executable, "-m", mistakes.__name__, name,
         str(seed)], text=True, capture_output=True, timeout=90, stdin=subprocess.DEVNULL,
        env={**mpirun_environment(), "MINIPAR_CHECK": "1", "OMP_NUM_THREADS": "1",
             **({"MINIPAR_TIMEOUT": "1"} if name == "a long computation" else {})})
    return done.returncode, done.stderr


def fault_of(name: str, seed: int, num_ranks: int) -> str:
    """What is wrong with the report; "" if nothing is."""
    case = Case(NoComm(num_ranks), seed)
    status, said = report(name, seed, num_ranks)
    expected = SAID[name].replace("{{", "{").replace("}}", "}").replace(
        "{who}", str(case.who)).replace("{peer}", str(case.peer))
    right = (status != 0 and said.count("minipar:") == 1 and re.search(expected, said)
             and ("mistakes.py:" in said or 'mistakes.py", line' in said))
    return "" if right else f"{name}, seed {seed}, {num_ranks} ranks: {expected}\n{status} {said}"


def faults_of(cases: Iterable[tuple[str, int, int]]) -> str:
    """The faults of all cases.  Three programs run at a time, as a program mostly waits."""
    with ThreadPoolExecutor(3) as pool:
        return "\n".join(filter(None, pool.map(lambda case: fault_of(*case), cases)))


# Slow, as another shows the same.
LIKE_ANOTHER = {"another dtype", "another shape", "another size", "another order",
                "a collective left out", "an isend without receive", "a message of another dtype",
                "another partner", "a Work left out", "a rank that returns", "a barrier left out"}
NUM_RANDOM = int(os.environ.get("RANDOM_MISTAKES", 60))     # a second each


@pytest.mark.parametrize("names", [
    pytest.param(MISTAKES.keys() - LIKE_ANOTHER, id="each kind"),
    pytest.param(LIKE_ANOTHER, id="the others", marks=pytest.mark.slow)])
def test_each_mistake_is_reported_once_with_rank_and_line(names):
    faults = faults_of((name, 5, 3) for name in sorted(names))
    assert not faults, faults


@pytest.mark.slow
def test_random_mistakes():
    draw = random.Random(34)
    faults = faults_of([(draw.choice([*MISTAKES]), draw.randrange(10**6), draw.randrange(2, 5))
                        for _ in range(NUM_RANDOM)])
    assert not faults, faults


STRATEGY = """
import numpy as np
from minipar.comm.collectives import all_reduce
from minipar.parallel.data.ddp import DistributedDataParallel

class Odd(DistributedDataParallel):
    def step(self, optimizer):
        all_reduce(self.comm, np.ones(2), op="max" if self.comm.rank else "sum")
        super().step(optimizer)
"""


@pytest.mark.parametrize("check", [True, False])
def test_train_has_a_flag_for_it(tmp_path, check):
    (tmp_path / "odd.py").write_text(STRATEGY)
    done = subprocess.run(
        [find_mpirun(), "-n", "2", sys.executable, "-m", "minipar", "train", "--data", "synthetic",
         "--layers", "1", "--width", "8", "--heads", "1", "--steps", "2", "--strategy",
         f"{tmp_path}/odd.py:Odd", *["--check"] * check], text=True, capture_output=True,
        timeout=90, stdin=subprocess.DEVNULL, env={**mpirun_environment(), "MINIPAR_CHECK": "0"})
    assert (done.returncode != 0) == check, done.stderr
    assert ("collective mismatch: ranks differ in op\n  rank 0 called all_reduce(dtype=float64, "
            "shape=(2,), op=sum" in done.stderr) == check, done.stderr
    assert (f"algorithm=auto) at {tmp_path}/odd.py:8\n" in done.stderr) == check, done.stderr
