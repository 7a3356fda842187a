"""Hundreds of commands run in one process here: each command's parser is made once."""

from functools import cache

import pytest

from minipar.commands import main


@pytest.fixture(scope="session", autouse=True)
def one_parser():
    """A parser takes two milliseconds to make, more than many a command takes to refuse a word."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "make_parser", cache(main.make_parser))
        yield
