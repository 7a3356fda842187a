"""Let pytest run the tests marked `mpi` on real ranks; forget what was measured on this machine.

One BLAS thread, also for simulated ranks: threads that wait for tiny products take the cores of
the other processes.
"""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["MINIPAR_CACHE"] = os.path.join(os.path.dirname(__file__), "no_cache")

pytest_plugins = ["minipar.testing.plugin"]


def pytest_collection_finish() -> None:
    """What exists by now stays: the garbage collector need not walk through thousands of tests."""
    gc.collect()
    gc.freeze()
