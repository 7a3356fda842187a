"""The pytest plugin: tests marked `mpi(min_size=N)` run on N or more real ranks, in an MPI job.

    python -m pytest                           controller.py: serial tests here, the others in
     |                                         an MPI job, whose reports it shows as its own
     +-- mpirun -n 4 python -m pytest ...      ranks.py: each test on all ranks, together

`python -m pytest -n 2` (pytest-xdist) spreads the serial tests over two workers, beside the job.
The command with mpirun also works when typed by hand.  tests/conftest.py loads this module.
"""

import importlib.util
from typing import Any

import pytest

from minipar import environment


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that tells the ranks of a job where to write their events."""
    parser.addoption("--mpi-events", metavar="FILE", default=None,
                     help="where the ranks write their events (set by the controller)")


@pytest.hookimpl(trylast=True)      # after the terminal, which silent ranks replace, and xdist
def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin for this process: controller or rank."""
    config.addinivalue_line("markers", "mpi(min_size=N): run on N or more real ranks")
    launched = environment.launched()
    if launched is None:
        from minipar.testing.controller import controller
        config.pluginmanager.register(controller(config), "minipar-controller")
    else:
        from minipar.testing.ranks import Ranks
        config.pluginmanager.register(Ranks(config, _load_mpi(launched)), "minipar-ranks")


def _load_mpi(launched: environment.Launched) -> Any:
    """mpi4py's MPI; UsageError unless it belongs to the mpirun that started this process."""
    if importlib.util.find_spec("mpi4py") is None:
        raise pytest.UsageError("started by mpirun, but mpi4py is not installed: "
                                "pip install '.[mpi]'")
    environment.prepare_mpi()
    from mpi4py import MPI
    if MPI.COMM_WORLD.size != launched.size:
        raise pytest.UsageError(
            f"{launched} started {launched.size} ranks, but mpi4py sees "
            f"{MPI.COMM_WORLD.size}: the two do not belong together")
    return MPI
