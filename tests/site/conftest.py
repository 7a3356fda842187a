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
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page = context.new_page()
    page.faults = []
    page.on("console", lambda message: page.faults.append(message.text)
            if message.type == "error" else None)
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("request", lambda request: page.faults.append(f"foreign: {request.url}")
            if not request.url.startswith(("http://127.0.0.1", "data:", "blob:")) else None)
    yield page
    context.close()
