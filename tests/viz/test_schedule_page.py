"""The page of schedules: in a browser its rows, times and formulas are those of Python."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from minipar.parallel.cost import pipelines as predict
from minipar.parallel.pipeline.schedule.actions import Action, stages_on
from minipar.parallel.pipeline.schedule.metrics import bubble, peak_memory
from minipar.parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.viz import write_schedule_page
from minipar.viz.pages.schedule_page import tabulate

BROWSER = next(filter(None, map(shutil.which, (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--virtual-time-budget=100000", "--window-size=1000,900")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")
CASES = [{"name": name, "p": p, "m": m, "v": v, "f": f, "i": i, "w": w}
         for name in SCHEDULES for p in (1, 2, 3, 5) for m in (1, 2, 4, 7, 10)
         for v in ((1, 2, 3) if SCHEDULES[name].any_stages else (1,))
         for f, i, w in ((1, 1, 1), (2, 3.5, 0.5), (0.5, 1, 4), (1, 1, 0))]


@pytest.fixture
def page(tmp_path):
    return write_schedule_page(tmp_path / "page.html", "zb_h1", 3, 5, times=Times(1, 2, 0.5))


class Dom(HTMLParser):
    """What a browser made of the page: its boxes, and the words of the elements with an id."""

    def __init__(self, text):
        super().__init__()
        self.boxes, self.words, self.rows, self.error, self._id = {}, {}, [], None, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self._id = attributes.get("id", self._id)
        self.error = attributes.get("data-error", self.error)
        if "data-box" in attributes:
            self.boxes[attributes["data-box"]] = attributes
        if "data-name" in attributes:
            self.rows.append((attributes["data-name"], attributes["class"]))

    def handle_data(self, data):
        self.words[self._id] = self.words.get(self._id, "") + data.strip()


def browse(page, fragment, tmp_path, script=""):
    if script:
        text = page.read_text(encoding="utf-8")
        page = tmp_path / "scripted.html"
        page.write_text(text.replace("</script>\n</body>", script + "</script></body>"),
                        encoding="utf-8")
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr",
         "--dump-dom", f"{page.as_uri()}#{fragment}"],
        capture_output=True, encoding="utf-8", timeout=60)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    dom = Dom(done.stdout)
    assert dom.error is None
    return dom


def python(name, p, m, v, f, i, w):
    """(schedule, timeline, seconds of a stage, stages on each rank) as the library has them."""
    schedule, placement = make_schedule(name, p, m, v if SCHEDULES[name].any_stages else None)
    stages = len(placement) // p
    times = Times(f, i, w).shared(stages)
    return schedule, simulate(schedule, times, placement), times, stages


@needs_browser
def test_the_page_s_schedules_times_and_figures_are_python_s(page, tmp_path):
    script = """
      const solved = CASES.map((each) => {
        const {intervals, makespan, peaks, formula, ofTotal, ofIdeal} = solve(each.name, each);
        const rows = makeSchedule(each.name, each.p, each.m, each.v).map(
          (row) => row.map(([kind, stage, i]) => `${stage}${kind}${i}`));
        return [rows, intervals.map((k) => [k.rank, k.kind, k.stage, k.i, k.start, k.end]),
                [makespan, formula, ofTotal, ofIdeal], peaks];
      });
      document.body.append(make("pre", {id: "log"}, JSON.stringify(solved)));
    """.replace("CASES", json.dumps(CASES))
    seen = json.loads(browse(page, "", tmp_path, script).words["log"])
    for case, (rows, intervals, figures, peaks) in zip(CASES, seen, strict=True):
        schedule, timeline, times, stages = python(**case)
        assert rows == [list(map(str, row)) for row in schedule], case
        expected = sorted(timeline.intervals)
        assert [each[:4] for each in sorted(intervals)] == [list(i[:4]) for i in expected], case
        assert [t for each in sorted(intervals) for t in each[4:]] == pytest.approx(
            [t for i in expected for t in i[4:]], abs=1e-9), case
        formula = predict.makespan(case["name"], case["p"], case["m"], times, stages)
        assert (figures[1] is None) == (formula is None), case
        assert [figures[0], *figures[2:]] == pytest.approx(
            [timeline.makespan(), *bubble(timeline)], abs=1e-9), case
        assert formula is None or figures[1] == pytest.approx(formula)
        assert peaks == [peak_memory(timeline, rank) for rank in range(case["p"])], case


def shown(dom, **case):
    """True if the picture is that of the case: boxes where and as wide as the times say."""
    _, timeline, _, _ = python(**case)
    assert {box.rsplit(" ", 2)[0] for box in dom.boxes} == {
        f"{i.rank} {i.kind} {i.stage} {i.microbatch}" for i in timeline.intervals}
    place = {box.rsplit(" ", 2)[0]: rect for box, rect in dom.boxes.items()}
    rects = [place[f"{i.rank} {i.kind} {i.stage} {i.microbatch}"] for i in timeline.intervals]
    scale = float(rects[0]["width"]) / (timeline.intervals[0].end - timeline.intervals[0].start)
    left = float(rects[0]["x"]) - timeline.intervals[0].start * scale
    for i, rect in zip(timeline.intervals, rects):
        assert float(rect["x"]) == pytest.approx(left + i.start * scale)
        assert float(rect["width"]) == pytest.approx((i.end - i.start) * scale)
    share = bubble(timeline)
    assert dom.words["about"] == (
        f"{case['name']}: makespan {round(timeline.makespan(), 2):g}, bubble "
        f"{share.of_total:.1%} of the total, {share.of_ideal:.1%} of the ideal")
    assert [name for name, chosen in dom.rows if chosen] == [case["name"]]
    assert [name for name, _ in dom.rows] == list(SCHEDULES)


@needs_browser
def test_the_page_opens_as_it_was_written_and_as_the_address_says(page, tmp_path):
    shown(browse(page, "", tmp_path), name="zb_h1", p=3, m=5, v=2, f=1, i=2, w=0.5)
    shown(browse(page, "schedule=interleaved&p=2&m=7&v=3&f=1.5&i=1&w=1", tmp_path),
          name="interleaved", p=2, m=7, v=3, f=1.5, i=1, w=1)
    shown(browse(page, "schedule=nothing&p=99&m=2.5&w=x&f=0.3&i=", tmp_path),
          name="zb_h1", p=3, m=5, v=2, f=1, i=2, w=0.5)       # what cannot be is left out


@needs_browser
def test_sliders_and_names_change_the_picture(page, tmp_path):
    script = """
      const slide = (id, value) => {
        find(id).value = value;
        find(id).dispatchEvent(new Event("input"));
      };
      slide("p", 4); slide("m", 6); slide("w", 1.5);
      const frozen = find("v").disabled;
      document.querySelector("[data-name=looped_breadth_first] button").click();
      slide("v", 3);
      document.body.append(make("pre", {id: "log"}, `${frozen} ${find("v").disabled}`));
    """
    dom = browse(page, "", tmp_path, script)
    shown(dom, name="looped_breadth_first", p=4, m=6, v=3, f=1, i=2, w=1.5)
    assert dom.words["log"] == "true false"
    assert dom.words["w-value"] == "1.5"


def decode(code, stages):
    """What the page makes of a row's text."""
    last = {}
    for letter, number in re.findall(r"([A-Za-z])(\d*)", code):
        at = ord(letter.upper()) - ord("A")
        last[at] = int(number or last.get(at, -1) + (1 if letter.isupper() else -1))
        yield Action("FBIW"[at % 4], stages[at // 4], last[at])


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.one_in(4)
def test_the_rows_of_the_page_are_those_of_the_schedules(name):
    table = tabulate(name)
    assert len(table["rows"]) == 8 * 24 * (4 if table["any_stages"] else 1)
    for key in [*table["rows"]][::7]:
        p, m, v = map(int, key.split())
        schedule, placement = make_schedule(name, p, m, v)
        stages = [stages_on(placement, rank) for rank in range(p)]
        assert stages == table["placements"][f"{p} {v}"]
        codes = table["rows"][key].split(" ")
        assert [[*decode(code, own)] for code, own in zip(codes, stages, strict=True)] == schedule


def test_the_page_needs_nothing_else(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"\bsrc=|\bhref=(?!.data:,)|@import|url\((?!#)|fetch\(|%[A-Z]+%", text)
    assert re.findall(r"https?://\S+", text) == ['http://www.w3.org/2000/svg";']      # a name
    assert list(page.parent.iterdir()) == [page] and len(text) < 1_500_000


def test_what_the_page_cannot_show_is_refused(tmp_path):
    path = tmp_path / "x.html"
    with pytest.raises(ValueError, match="unknown schedule '2f2b': choose from gpipe"):
        write_schedule_page(path, "2f2b")
    with pytest.raises(ValueError, match="the page has p from 1 to 8 in steps of 1, not 9"):
        write_schedule_page(path, num_ranks=9)
    with pytest.raises(ValueError, match="the page has f from 0.5 to 4 in steps of 0.5, not 0.3"):
        write_schedule_page(path, times=Times(0.3, 1, 1))
    assert not path.exists()


def test_the_title_is_escaped(tmp_path):
    text = write_schedule_page(tmp_path / "x.html", title="</title><script>%DATA%").read_text()
    assert "&lt;/title&gt;&lt;script&gt;%DATA%" in text and "<script>%" not in text
