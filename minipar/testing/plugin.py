"""The pytest plugin: tests marked `mpi(min_size=N)` run on N real ranks, whoever starts pytest.

    python -m pytest                           the parent: serial tests here, the others in
     |                                         one MPI job, whose reports it shows as its own
     +-- mpirun -n 4 python -m pytest ...      the ranks: each test on all of them, together

The second line also works when typed by hand. tests/conftest.py loads this module; launcher.py
is the parent, ranks.py the ranks.
"""

import importlib.util
from typing import Any

import pytest

from minipar import environment


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which the launcher tells the ranks where to put their results."""
    parser.addoption("--mpi-results", metavar="FILE", default=None,
                     help="where the ranks write their results (set by the launcher)")


@pytest.hookimpl(trylast=True)      # after pytest's terminal, which the silent ranks replace
def pytest_configure(config: pytest.Config) -> None:
    """Take the part that this process has."""
    config.addinivalue_line("markers", "mpi(min_size=N): run on N real ranks")
    launched = environment.launched()
    if launched is None:
        from minipar.testing.launcher import Launcher
        config.pluginmanager.register(Launcher(config), "minipar-launcher")
    else:
        from minipar.testing.ranks import Ranks
        config.pluginmanager.register(Ranks(config, _load_mpi(launched)), "minipar-ranks")


def _load_mpi(launched: environment.Launched) -> Any:
    """mpi4py's MPI, if it is there and belongs to the launcher that started this process."""
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
