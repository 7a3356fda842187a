"""For your own tests: `find_difference` compares two programs, `@worlds` runs one in both worlds.

    find_difference(left, right, batches, ranks=(1, 4))     the first array that differs
    record(name, values, …)                                 more arrays to compare
    @worlds(2, 4)                       a test on simulated and on real ranks: a pytest plugin

    worlds         the decorator: one test body on simulated and on real ranks
    plugin         what pytest loads; it registers a controller or a rank
    controller     the pytest that the user starts, with or without pytest-xdist
    mpi_reports    runs tests in MPI jobs and waits for their reports
    mpi_job        one MPI job: mpirun, and pytest on each rank
    ranks          pytest on a rank: all ranks run each test together
    watchdog       a thread of each rank that ends a test which hangs
    status_board   the files by which the processes of a job learn of each other
    reports        the reports of all ranks, merged into one

A test file imports from here alone; comparing needs no pytest.  minipar's own tests, in tests/, use
the plugin as well: tests/conftest.py loads it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from minipar.testing.worlds import worlds

if TYPE_CHECKING:
    from minipar.compare_runs.run import find_difference, record

__all__ = ["find_difference", "record", "worlds"]


def __getattr__(name: str) -> Any:
    """Import a public name on its first use (PEP 562): the plugin needs no strategies."""
    if name in __all__:
        return getattr(import_module("minipar.compare_runs.run"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it offers "
                         f"{', '.join(__all__)}")
