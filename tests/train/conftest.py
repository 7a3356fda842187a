"""Runs of the training program draw no pictures here, unless a test asks for the fixture."""

import pytest

from tests.commands.conftest import one_parser  # noqa: F401 -- hundreds of runs here, too


@pytest.fixture
def pictures():
    """Ask for this fixture where a run is to draw."""


@pytest.fixture(autouse=True)
def without_pictures(request, monkeypatch):
    """Drawing takes longer than the few steps of most tests."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("minipar.train.program.draw_pictures", lambda state, world, out: [])
