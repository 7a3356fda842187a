"""What a reader sees on the built site: whole pictures, read on a phone; links; no Markdown."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.image import imread

from minipar.viz import write_schedule_page
from tests.site.conftest import SITE
from tests.site.test_walk import PAGES, names, path_of

pytestmark = pytest.mark.site
PHONE = {"width": 390, "height": 844}
MARKDOWN = re.compile(r"`|\]\(|\| ?-{3}|^#+ ", re.MULTILINE)
WORDS_PER_PIXEL = 0.7           # pictures are drawn at 130 dots an inch; a screen shows 96
NOT_READ = re.compile(r"<(pre|script|style)\b.*?</\1>", re.DOTALL)
VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


class Reader(HTMLParser):
    """The words of a page outside code, its pictures with the link around each, and its names."""

    def __init__(self, page: Path):
        super().__init__()
        self.page, self.open = page, []
        self.parts: list[str] = []
        self.code: list[tuple[str, str | None]] = []
        self.pictures: list[tuple[dict, dict]] = []
        self.rows: list[str] = []
        self.feed(NOT_READ.sub("", page.read_text(encoding="utf-8")))
        self.words = "".join(self.parts)

    def inside(self, *tags: str) -> dict | None:
        """The attributes of an element that is open, or None."""
        return next((attrs for tag, attrs in reversed(self.open) if tag in tags), None)

    def handle_starttag(self, tag, attrs):
        if tag == "img" and self.inside("article"):
            self.pictures.append((dict(attrs), self.inside("a") or {}))
        if tag not in VOID:
            self.open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if self.inside("code") is not None:
            if self.inside("summary") is None:
                self.code.append((data, (self.inside("a") or {}).get("href")))
            return
        self.parts.append(data)
        if self.inside("td") is not None:
            self.rows.append(data)


@pytest.fixture(scope="module")
def readers():
    assert PAGES, "make docs"
    return [Reader(page) for page in PAGES]


def test_no_markdown_is_left(readers):
    left = {path_of(each.page): found for each in readers
            if (found := [each.words[max(0, m.start() - 40):m.end() + 40]
                          for m in MARKDOWN.finditer(each.words)])}
    assert not left


def test_every_picture_opens_at_its_own_size(readers):
    seen = [(path_of(each.page), *pair) for each in readers for pair in each.pictures]
    assert len(seen) > 40
    for page, picture, link in seen:
        where = f"{page} {picture['src']}"
        assert link.get("href") == picture["src"], where
        assert "picture" in link["class"], where


@pytest.mark.parametrize("file", sorted(SITE.glob("*/*.png")), ids=lambda file: file.stem)
def test_no_picture_is_cut(file):
    pixels = imread(file)[..., :3]
    edges = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
    assert min(edge.min() for edge in edges) > 0.99, "something is drawn up to the edge"


@pytest.mark.parametrize("page", [page for page in PAGES if "<img" in page.read_text("utf-8")],
                         ids=lambda page: names([page])[0])
def test_pictures_can_be_read_on_a_phone_and_do_not_glare(page, tab, address):
    tab.set_viewport_size(PHONE)
    tab.goto(address + path_of(page))
    for picture in tab.locator("article img").all():
        shown, file = picture.evaluate("each => [each.clientWidth, each.naturalWidth]")
        assert shown >= WORDS_PER_PIXEL * file
    glare = "document.querySelectorAll('.picture').values().map(e => getComputedStyle(e).filter)"
    assert set(tab.evaluate(f"[...{glare}]")) == {"none"}
    tab.evaluate("document.body.setAttribute('data-md-color-scheme', 'slate')")
    assert set(tab.evaluate(f"[...{glare}]")) == {"brightness(0.82)"}


@pytest.mark.parametrize("page", [page for page in PAGES if 'class="piece"' in page.read_text(
    "utf-8")], ids=lambda page: names([page])[0])
def test_drawings_can_be_read_on_a_phone(page, tab, address):
    tab.set_viewport_size(PHONE)
    tab.goto(address + path_of(page))
    tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    sizes = tab.evaluate("""[...document.querySelectorAll(".piece svg text")].map(each =>
        parseFloat(each.getAttribute("font-size")) * each.getScreenCTM().a)""")
    assert min(sizes, default=10) >= 9, "pixels of the smallest words"


def test_a_pipeline_is_whole_on_a_phone(tab, tmp_path):
    page = write_schedule_page(tmp_path / "page.html", "1f1b", 4, 8)
    tab.set_viewport_size(PHONE)
    tab.goto(page.as_uri())
    for what in ("[data-box]", ".axis", "thead th"):
        right = tab.evaluate(f"""Math.max(...[...document.querySelectorAll("{what}")].map(
            each => each.getBoundingClientRect().right))""")
        assert right <= PHONE["width"], what


def test_rows_below_another_are_indented():
    lesson = Reader(SITE / "lessons" / "03" / "index.html")
    below = [words for words in lesson.rows if "on the critical path" in words]
    assert below and all(words.startswith("\u2003\u2003on") for words in below)


def test_names_are_those_of_the_field():
    titles = {script: re.search(r"<title>(.*?) - minipar", (SITE / "lessons" / script /
                                "index.html").read_text("utf-8"))[1] for script in (
        "04", "09", "12", "13")}
    assert titles == {"04": "04 All-reduce", "09": "09 ZeRO", "12": "12 GPipe and 1F1B",
                      "13": "13 Interleaved and zero bubble"}


def test_the_api_s_functions_stand_below_their_modules():
    text = (SITE / "api" / "minipar.comm" / "index.html").read_text("utf-8")
    level = {name: int(found) for found, name in re.findall(r'<h(\d) id="([\w.]+)"', text)}
    assert level["minipar.comm"] == 1
    for name in level.keys() - {"minipar.comm"}:
        assert level[name] == name.count(".")           # minipar.comm.mesh: 2, a name in it: 3


def test_named_files_link_to_their_source(readers):
    links = {(path_of(each.page), name): href for each in readers for name, href in each.code}
    assert links["/lessons/13/", "lessons/13_interleaved_and_zero_bubble.py"].startswith(
        "../../source/lessons/13_interleaved_and_zero_bubble.py.html#line-")
    assert links["/rosetta/", "data/ddp.py"] == "../source/minipar/parallel/data/ddp.py.html"
    assert links["/api/minipar.comm/", "mesh.py"] == "../../source/minipar/comm/mesh.py.html"
    text = (SITE / "api" / "minipar.comm" / "index.html").read_text("utf-8")
    assert re.search(r'<summary>Source code in <code>minipar/comm/mesh.py</code></summary><p><a '
                     r'href="../../source/minipar/comm/mesh.py.html#line-\d+">Line', text)
    assert links["/contributing/", "minipar/comm/cost/"] == (
        "../api/minipar.comm.cost/#minipar.comm.cost")
    unlinked = {name for (_, name), href in links.items() if href is None
                and re.fullmatch(r"(minipar|lessons)/[\w/]+\.py", name)}
    assert {name for name in unlinked if not re.search("[A-Z]{2}", name)} == set()


def test_a_line_of_a_source_page_is_that_of_the_file():
    text = (SITE / "source" / "minipar" / "comm" / "mesh.py.html").read_text("utf-8")
    root = Path(__file__).parents[2]
    lines = (root / "minipar" / "comm" / "mesh.py").read_text("utf-8").splitlines()
    number = next(i for i, line in enumerate(lines, 1) if line.startswith("class DeviceMesh"))
    shown = re.search(rf'<span id="line-{number}">(.*)', text)[1]
    assert re.sub("<.*?>", "", shown) == "class DeviceMesh:"
