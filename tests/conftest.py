"""Load the plugin that runs `mpi` tests on real ranks; ignore what was measured on this machine.

Every process has one BLAS thread: threads that wait for tiny products take the cores of others.
"""

import gc
import os

import pytest

try:
    from tests.support.sweeps import mark_repetitions
except ModuleNotFoundError:     # the check of an exercise has a few tests alone, all their cases
    def mark_repetitions(items):
        """Mark none."""

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["MINIPAR_CACHE"] = os.path.join(os.path.dirname(__file__), "no_cache")

pytest_plugins = ["minipar.testing.plugin"]

# Tests that mostly wait for other processes run first, while real ranks use the core.
WAITING = ("tests/test_launcher.py", "tests/testing/", "tests/comm/mpi_ranks/test_guardian.py",
           "tests/comm/mpi_ranks/check/", "tests/school/exercises/test_tool")


@pytest.fixture(scope="module")
def no_pictures():
    """Runs of the training program draw none: that takes longer than a few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minipar.train.program.draw_pictures", lambda state, world, out: [])
        yield


@pytest.hookimpl(tryfirst=True)     # before -m "not slow" takes its choice
def pytest_collection_modifyitems(config: pytest.Config, items: list) -> None:
    """Mark repetitions as slow; begin with the tests that wait; the others keep their order."""
    if not any("[" in word for word in config.args):        # a case that is named runs
        mark_repetitions(item for item in items if "against_pytorch" not in item.nodeid)
    items.sort(key=lambda item: not item.nodeid.startswith(WAITING))


def pytest_collection_finish() -> None:
    """Let the garbage collector skip the thousands of collected tests."""
    gc.collect()
    gc.freeze()
