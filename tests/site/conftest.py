"""A built site, served on localhost, and a headless Chromium that looks at it."""

import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = Path(os.environ.get("SITE", ROOT / "site"))
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_):
        pass


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of the built site."""
    if not (SITE / "index.html").exists():
        pytest.skip(f"there is no site in {SITE}: make docs")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium, driven by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="make test-site installs it")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no {CHROMIUM}: set CHROMIUM to a Chromium or Chrome")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=[
            "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync"])
        yield chromium
        chromium.close()


@pytest.fixture
def tab(browser):
    """A fresh tab of a desktop's size; `tab.faults` are its errors and foreign requests."""
    with watched(browser, 1280, 900) as page:
        yield page


@pytest.fixture
def phone(browser):
    """The same, of a phone's size."""
    with watched(browser, 360, 740) as page:
        yield page


class watched:
    """A context with a tab that notes what goes wrong."""

    def __init__(self, browser, width: int, height: int):
        self.context = browser.new_context(viewport={"width": width, "height": height},
                                           reduced_motion="reduce")

    def __enter__(self):
        page = self.context.new_page()
        page.faults = []
        page.on("console", lambda message: page.faults.append(message.text)
                if message.type == "error" else None)
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("request", lambda request: page.faults.append(f"foreign: {request.url}")
                if not request.url.startswith(("http://127.0.0.1", "data:", "blob:")) else None)
        return page

    def __exit__(self, *_):
        self.context.close()
