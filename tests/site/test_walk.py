"""A walk over every page of the built site: errors, links, phones, keyboards, screen readers."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.site.conftest import SITE

pytestmark = pytest.mark.site
SOURCES = sorted(SITE.glob("source/**/*.html"))         # alike: one of them is walked over
PAGES = sorted({*SITE.rglob("*.html")} - {*SOURCES[1:]})
MOST_BYTES = 1_000_000          # of a lesson's page, with its picture and what all pages share
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


def path_of(page: Path) -> str:
    """The address of a page within the site."""
    return f"/{page.relative_to(SITE).as_posix().removesuffix('index.html')}"


def names(pages: list[Path]) -> list[str]:
    return [path_of(page).strip("/") or "index" for page in pages]


class Links(HTMLParser):
    """The links, images and ids of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.links += [found[name] for name in ("href", "src") if found.get(name)]
        self.ids |= {found[name] for name in ("id", "name") if found.get(name)}


def test_links_resolve():
    assert len(PAGES) > 80, "the site has its lessons, its book and its API"
    seen = {page: Links(page.read_text(encoding="utf-8")) for page in {*PAGES, *SOURCES}}
    broken = []
    for page, found in seen.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            start = SITE if parts.path.startswith("/") else page.parent
            target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                broken.append(f"{path_of(page)} → {link}")
            elif parts.fragment and target in seen and \
                    unquote(parts.fragment) not in seen[target].ids | {"__toc", "__comments"}:
                broken.append(f"{path_of(page)} → {link} (no such place)")
    assert not broken, "\n".join(broken[:40])


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_a_page(page, tab, address):
    """No error, no foreign address, one heading; no obstacle, light and dark; it fits a phone."""
    tab.goto(address + path_of(page))
    tab.wait_for_load_state("networkidle")
    if page.name == "index.html":
        assert tab.locator("h1").count() == 1
    assert not obstacles(tab), "light"
    tab.evaluate("document.body.setAttribute('data-md-color-scheme', 'slate')")
    assert not obstacles(tab), "dark"
    tab.set_viewport_size({"width": 360, "height": 740})
    wide = tab.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
    assert wide <= 0, f"{wide} pixels wider than a phone"
    assert not tab.faults


def obstacles(tab) -> list:
    """The violations of accessibility that axe finds on the page: rule, how often, an example."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(tab, options={"runOnly": RULES}).response["violations"]
    return [(each["id"], len(each["nodes"]), each["nodes"][0]["html"][:120]) for each in found]


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.parent.name == "lessons"],
                         ids=lambda page: page.parent.name)
def test_a_lesson_is_small(page, tab, address):
    sizes = []
    tab.on("response", lambda response: sizes.append(len(response.body())))
    tab.goto(address + path_of(page))
    tab.wait_for_load_state("networkidle")
    assert sum(sizes) <= MOST_BYTES, f"{sum(sizes):,} bytes"


def test_a_reader_finds_things(tab, address):
    """The first lesson, the API of all_reduce, the answer to a question: at most three clicks."""
    tab.goto(address)
    tab.get_by_role("link", name="Lessons", exact=True).first.click()
    tab.get_by_role("link", name="Why distribute? When does one machine stop?").click()
    assert "Why distribute?" in tab.locator("h1").inner_text()
    tab.locator("details summary").first.click()
    assert tab.locator("details[open]").count() >= 1
    tab.goto(address)
    tab.get_by_role("link", name="API", exact=True).first.click()
    tab.get_by_role("link", name="mp.all_reduce", exact=True).click()
    assert "all_reduce" in tab.url


def test_search_finds_a_page(tab, address):
    tab.goto(address)
    tab.keyboard.press("/")
    tab.keyboard.type("zero bubble", delay=20)
    tab.wait_for_selector(".md-search-result__item", timeout=10_000)
    assert "bubble" in tab.locator(".md-search-result__item").first.inner_text().lower()


def test_the_keyboard_reaches_the_text(tab, address):
    tab.goto(address)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent").strip() == "Skip to content"
    tab.keyboard.press("Enter")
    assert tab.url.endswith("#minipar")
