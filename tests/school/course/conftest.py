"""A worker for all tests of a file: starting one takes a fifth of a second."""

import pytest

from minipar.school.course.checker.ranks import sandbox
from minipar.school.course.checker.runner import Worker
from minipar.school.course.checker.service import Limits


@pytest.fixture(scope="module")
def worker():
    """Time enough for functions that end, on a busy machine, too."""
    with Worker(Limits(seconds=30.0)) as started:
        yield started


@pytest.fixture(scope="module")
def hasty_worker():
    """For functions that never end."""
    with Worker(Limits(seconds=0.3)) as started:
        yield started


def pytest_collection_modifyitems(items):
    skip = pytest.mark.skip(reason="the sandbox needs Linux on x86-64 or ARM")
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if names & {"worker", "hasty_worker"} and not sandbox.is_supported():
            item.add_marker(skip)
