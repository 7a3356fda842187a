"""A pytest plugin for your own tests: `@worlds(2, 4)` runs them on simulated and on real ranks.

    worlds         the decorator: one test body on simulated and on real ranks
    plugin         what pytest loads; it registers a controller or a rank
    controller     the pytest that the user starts, with or without pytest-xdist
    mpi_reports    runs tests in MPI jobs and waits for their reports
    mpi_job        one MPI job: mpirun, and pytest on each rank
    ranks          pytest on a rank: all ranks run each test together
    watchdog       a thread of each rank that ends a test which hangs
    status_board   the files in which the processes of a job read of each other
    reports        the reports of all ranks, merged into one

A test file imports `worlds` alone.  minipar's own tests, in tests/, use the plugin as well:
tests/conftest.py loads it.
"""

from minipar.testing.worlds import worlds

__all__ = ["worlds"]
