"""The page that steps through rounds: its values, its safety, and what a browser makes of it."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from minipar.viz import record_rounds, write_rounds_page
from minipar.viz.pages import rounds_page
from minipar.viz.pages.rounds_page import page_data

FILMS = [("all_gather", "ring", 4), ("reduce_scatter", "recursive_halving", 5),
         ("all_to_all", "bruck", 3), ("barrier", "tree", 3), ("broadcast", "binomial", 1)]
BROWSER = next(filter(None, map(shutil.which, (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--virtual-time-budget=100000")


@pytest.fixture(scope="module")
def runs():
    return [record_rounds(*run) for run in FILMS]


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    return write_rounds_page(tmp_path_factory.mktemp("page") / "rounds.html", *runs,
                             title="Rounds")


def test_the_page_has_the_values_of_the_runs(runs, page):
    text = page.read_text(encoding="utf-8")
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    pages = json.loads(data)
    assert pages == [page_data(run) for run in runs]
    for run, shown in zip(runs, pages):
        for held, step in zip(run.held, shown["steps"], strict=True):
            assert [{int(c): set(ranks) for c, ranks in mine.items()}
                    for mine in step["held"]] == held
        for moves, step in zip(run.moves, shown["steps"][1:], strict=True):
            assert [(m["source"], m["dest"], m["chunks"]) for m in step["moves"]] == [
                (m.source, m.dest, sorted(m.chunks)) for m in moves]
        assert shown["steps"][-1]["counted"] == shown["model"]
    step = pages[0]["steps"][2]
    assert step["caption"] == "Round 2 of 3: 4 messages at once, 1 kB each."
    assert step["moves"][0]["text"] == "0 → 1: d (1 kB)"
    assert step["counted"] == ["2", "8", "2 kB"]
    assert pages[0]["about"][0].startswith("All-gather: ")
    assert pages[0]["about"][1].startswith("p - 1 rounds, ")


def test_the_page_needs_nothing_else(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"\bsrc=|\bhref=(?!.data:,)|@import|url\((?!#)|fetch\(|%[A-Z]+%", text)
    assert re.findall(r"https?://\S+", text) == ['http://www.w3.org/2000/svg",']    # a name
    assert list(page.parent.iterdir()) == [page]


def test_what_is_inserted_is_escaped(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(rounds_page, "title_of", lambda run: "</script><script>alert(2)</script>")
    title = "</title><script>alert(1)</script> & %DATA% \\1"
    text = write_rounds_page(tmp_path / "x.html", runs[0], title=title).read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp; %DATA% \\1" in text
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert not set("<>&") & set(data)
    assert json.loads(data)[0]["title"] == "</script><script>alert(2)</script>"


def test_a_page_without_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one run"):
        write_rounds_page(tmp_path / "x.html", title="nothing")


class Dom(HTMLParser):
    """What a browser made of the page: its cells, and the words of the elements with an id."""

    def __init__(self, text):
        super().__init__()
        self.cells, self.words, self.arcs, self.error, self._id = {}, {}, 0, None, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self._id = attributes.get("id", self._id)
        self.error = attributes.get("data-error", self.error)
        self.arcs += "marker-end" in attributes
        if "data-from" in attributes:
            place = int(attributes["data-rank"]), int(attributes["data-chunk"])
            assert place not in self.cells
            self.cells[place] = {int(rank) for rank in attributes["data-from"].split()}

    def handle_data(self, data):
        self.words[self._id] = self.words.get(self._id, "") + data.strip()


def browse(page, fragment, tmp_path):
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
         "--dump-dom", f"{page.as_uri()}#{fragment}"],
        capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    dom = Dom(done.stdout)
    assert dom.error is None
    return dom


def cells_of(run, k):
    return {(rank, chunk): set(held.get(chunk, ()))
            for rank, held in enumerate(run.held[k]) for chunk in run.whole}


needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")


@needs_browser
def test_a_browser_opens_the_page_at_a_round(runs, page, tmp_path):
    dom, run, k = browse(page, "algorithm=1&round=2", tmp_path), runs[1], 2
    assert dom.cells == cells_of(run, k)
    assert dom.words["where"] == f"round {k} of {len(run.moves)}"
    shown = page_data(run)["steps"][k]
    assert dom.words["caption"].startswith(shown["caption"])
    assert dom.words["moves"] == "".join(move["text"] for move in shown["moves"])
    assert dom.arcs == len(run.moves[k - 1])


# What a reader does, and the (run, round) that the page must show when all has landed.
VISIT = [
    ("find('next').click()", (0, 1)),
    ("find('next').click(); find('next').click()", (0, 3)),
    ("find('next').click()", (0, 3)),
    ("find('back').click()", (0, 2)),
    ("find('slider').value = 1; find('slider').dispatchEvent(new Event('input'))", (0, 1)),
    ("press('ArrowRight')", (0, 2)), ("press('ArrowLeft')", (0, 1)), ("press('Home')", (0, 0)),
    ("press(' ')", (0, 3)),
    ("find('play').click(); find('play').click()", (0, 0)),
    ("find('runs').children[1].click(); press('End')", (1, 4)),
    ("location.hash = '#algorithm=2&round=1'", (2, 1)),
    ("press('ArrowRight')", (2, 2)),
    ("location.hash = '#algorithm=3&round=9'", (3, 4)),
    ("location.hash = '#algorithm=7&round=x'", (0, 0)),
]


@needs_browser
def test_buttons_keys_slider_and_address_go_from_round_to_round(runs, page, tmp_path):
    script = """
      const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", {key}));
      const log = document.body.appendChild(make("pre", {id: "log"})), seen = [];
      async function visit() {
        for (const act of [ACTS]) {
          act();
          await new Promise((resolve) => setTimeout(resolve, 5000));
          seen.push([find("where").textContent, [...document.querySelectorAll("#ranks .cell")].map(
            (cell) => [cell.dataset.rank, cell.dataset.chunk, cell.dataset.from])]);
        }
        log.textContent = JSON.stringify(seen);
      }
      visit();
    </script>""".replace("ACTS", ", ".join(f"() => {{ {act}; }}" for act, _ in VISIT))
    text = page.read_text(encoding="utf-8")
    visited = tmp_path / "visited.html"
    visited.write_text(text.replace("</script>\n</body>", script + "</body>"), encoding="utf-8")
    seen = json.loads(browse(visited, "", tmp_path).words["log"])
    for (act, (which, k)), (where, cells) in zip(VISIT, seen, strict=True):
        run = runs[which]
        assert where == f"round {k} of {len(run.moves)}", act
        assert {(int(rank), int(chunk)): set(map(int, ranks.split()))
                for rank, chunk, ranks in cells} == cells_of(run, k), act
