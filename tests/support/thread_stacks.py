"""Stacks for docs/browser/greenlet.py outside a browser: each is a thread, and one runs at a time.

As a pytest plugin, `-p tests.support.thread_stacks`, it gives a run that stand-in for greenlet.
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

STAND_IN = Path(__file__).parents[2] / "docs" / "browser"
_woken: dict[int, threading.Semaphore] = defaultdict(lambda: threading.Semaphore(0))


def wake(other: int) -> None:
    """Let the stack go on that is parked as number `other`."""
    _woken[other].release()


def switch(me: int, other: int) -> None:
    """Park this stack as number `me`, and wake another."""
    wake(other)
    _woken[me].acquire()


def start(me: int, body: Callable[[], Any]) -> None:
    """Park this stack as number `me`, and run body() on a new one."""
    threading.Thread(target=body, daemon=True).start()
    _woken[me].acquire()


def load() -> ModuleType:
    """The stand-in for greenlet, on these stacks."""
    sys.modules["stacks"] = sys.modules[__name__]
    sys.modules.pop("greenlet", None)
    sys.path.insert(0, str(STAND_IN))
    try:
        import greenlet
    finally:
        sys.path.remove(str(STAND_IN))
    return greenlet


def pytest_report_header() -> str:
    """Say which greenlet it is."""
    import greenlet
    return f"stand-in for greenlet: {greenlet.__file__}"


if f"-p {__name__}" in " ".join(sys.argv):      # chosen as a plugin, before minipar is imported
    load()
