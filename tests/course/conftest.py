"""A worker for all tests of a file: starting one takes a fifth of a second."""

import pytest

from minipar.course.checker.ranks import sandbox
from minipar.course.checker.runner import Worker
from minipar.course.checker.service import Limits


@pytest.fixture(scope="module")
def worker():
    with Worker(Limits(seconds=1.0)) as started:
        yield started


def pytest_collection_modifyitems(items):
    skip = pytest.mark.skip(reason="the sandbox needs Linux on x86-64 or ARM")
    for item in items:
        if "worker" in getattr(item, "fixturenames", ()) and not sandbox.is_supported():
            item.add_marker(skip)
