"""The program on the README's first page: at most 25 lines, and it does what the page says."""

import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from minipar.comm import Cluster, Deadlock
from minipar.environment import find_mpirun, mpirun_environment
from minipar.launcher import simulate
from tests.support.cases import ONE_PROCESS

README = Path(__file__).parents[1] / "README.md"
PROGRAM = re.search(r"```python\n(import minipar as mp\n.*?)```", README.read_text("utf-8"),
                    re.DOTALL)[1]


QUICK = {1: ["zero1"], 3: ["ddp", "zero1", "fsdp"]}


@cache
def losses(strategy: str, num_ranks: int) -> list[float]:
    """The losses that the program prints on simulated ranks, with this strategy."""
    names: dict = {}
    printed = io.StringIO()
    body = PROGRAM.replace('"zero1"', repr(strategy)).replace("mp.launch(main)", "")
    exec(compile(body, "program", "exec"), names)
    with redirect_stdout(printed):
        simulate(names["main"], Cluster(num_ranks))
    return [float(line.split()[1]) for line in printed.getvalue().splitlines()]


def test_it_is_short():
    assert len(PROGRAM.splitlines()) <= 25


# The other strategies are slow: tests/parallel/test_strategies.py has them, also on one rank.
@pytest.mark.parametrize("num_ranks, strategy", [
    pytest.param(n, name, marks=[pytest.mark.slow] * (name not in QUICK[n]))
    for n in (1, 3) for name in ONE_PROCESS])
@pytest.mark.one_in(2)
def test_any_strategy_on_any_number_of_ranks_learns_the_same(strategy, num_ranks):
    alone = losses("ddp", 1)
    assert alone[-1] < alone[0] - 0.2
    np.testing.assert_allclose(losses(strategy, num_ranks), alone, atol=0.0025)


@pytest.mark.skipif(find_mpirun() is None, reason="there is no mpirun: pip install '.[mpi]'")
def test_it_runs_under_mpirun_and_without(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    commands = [[find_mpirun(), "-n", "2", sys.executable, "program.py"],
                [sys.executable, "program.py", "--ranks", "2"]]
    printed = [subprocess.run(command, cwd=tmp_path, env=mpirun_environment(), text=True,
                              capture_output=True, check=True, timeout=60).stdout
               for command in commands]
    assert len(printed[0].splitlines()) == 20
    assert printed[0].splitlines()[:5] == printed[1].splitlines()[:5]


def test_it_shows_a_function_of_micro():
    """And the change to it that README proposes is a deadlock, told in words."""
    shown = re.search(r"```python\n(def reduce_scatter.*?)```", README.read_text("utf-8"),
                      re.DOTALL)[1]
    assert shown in (README.parent / "lessons" / "micro.py").read_text("utf-8")
    hanging, number = re.subn(r"comm\.sendrecv\((.+), (.+ % p), arrived, (.+ % p)\)",
                              r"comm.send(\1, \2); comm.recv(arrived, \3)", shown)
    assert number == 1
    names = {"np": np}
    exec(compile(hanging, "micro.py", "exec"), names)
    with pytest.raises(Deadlock, match=r"rank 3 waits to send to rank 0 .* at micro\.py:7"):
        Cluster(4).run(lambda comm: names["reduce_scatter"](comm, np.arange(8.0)))


def test_it_is_short_enough_to_be_read():
    assert len(README.read_text("utf-8").splitlines()) < 150


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/pages/index.md",
                                  "docs/pages/course.md", "docs/pages/design.md"])
def test_every_page_gives_one_order(page):
    """What to read, where a page first says it: micro.py, then the lessons, then the spine."""
    text = (README.parent / page).read_text("utf-8")
    order = re.search(r"micro\.py.{,400}?\[(?:The |the )?lessons\].{,400}?\bspine\b", text,
                      re.DOTALL)
    assert order, f"{page}: say micro.py, then the lessons, then the spine"
    assert order.start() < text.lower().index("spine"), f"{page} names the spine before"
