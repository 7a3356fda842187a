"""Lessons and exercises in the page itself: Python in a worker of a headless Chromium."""

import json

import pytest

from minipar.school.exercises.workspace import Workspace
from tests.site.conftest import ROOT, SITE

pytestmark = [pytest.mark.site, pytest.mark.skipif(
    not (SITE / "browser" / "index.html").exists(),
    reason="the site was built without Python for the browser: make docs WEB=1")]
SECONDS = 240_000       # ms: a lesson on a busy machine, with the start of Python
CATALOG = SITE / "assets" / "browser" / "catalog.json"
LESSONS = [each["name"] for each in json.loads(CATALOG.read_text(encoding="utf-8"))["lessons"]
           ] if CATALOG.exists() else []


@pytest.fixture
def page(tab, address):
    """The page, before anything ran."""
    tab.set_default_timeout(SECONDS)
    tab.goto(f"{address}/browser/")
    tab.get_by_text("Nothing has run yet.").wait_for()
    return tab


def run_lesson(page, name: str) -> str:
    """Run a lesson; return what it printed."""
    page.get_by_label("Lesson", exact=True).select_option(index=LESSONS.index(name))
    page.get_by_role("button", name="Run the lesson").click()
    words = page.locator("#browser .words").get_by_text(f"Lesson {name[:2]} ")
    words.wait_for()
    printed = page.get_by_label("What Python prints").inner_text()
    assert "ran to its end" in words.inner_text(), printed[-3000:]
    return printed


def run_tests(page, exercise: str, passes: bool) -> str:
    """Test what stands in the editor; return what was printed."""
    page.get_by_role("button", name="Run its tests").click()
    words = page.locator("#browser .words").get_by_text(f"{exercise} ")
    words.wait_for()
    printed = page.get_by_label("What Python prints").inner_text()
    assert f"{exercise} {'passed' if passes else 'failed'}" in words.inner_text(), printed
    return printed


def test_a_lesson_runs_and_names_the_deadlock(page):
    printed = run_lesson(page, "01_messages")
    assert "deadlock: no rank can go on" in printed
    assert "rank 0 waits to send to rank 1 (tag 0, 16000 bytes)" in printed
    assert "at 01_messages.py:" in printed and "The answers: minipar lesson 01" in printed
    assert not page.faults


@pytest.mark.parametrize("name", ["07_data_parallel", "17_experts"])
def test_a_lesson_runs_without_threads_and_with_integers_of_32_bits(name, page):
    assert "Takeaway:" in run_lesson(page, name)


def test_an_exercise_fails_then_passes(page):
    exercise = Workspace(ROOT).find("binomial_broadcast")
    reference = Workspace(ROOT).block(exercise)
    page.get_by_label("Exercise", exact=True).select_option(
        label=f"{exercise.name}: {exercise.title}")
    editor = page.get_by_label("Your function")
    assert "NotImplementedError" in editor.input_value()
    assert "nothing is written yet" in run_tests(page, exercise.name, passes=False)
    head = reference.split("\n")[0]
    wrong = exercise.mutants[0]
    editor.fill("\n".join([head, *[f"    {line}" for line in wrong.body.strip().split("\n")]]))
    printed = run_tests(page, exercise.name, passes=False)
    assert f"0 of {exercise.points} points" in printed and "A known mistake" in printed
    editor.fill(reference + "\n    pass")       # not the reference, word for word
    assert f"✓ {exercise.name}: {exercise.points} points" in run_tests(
        page, exercise.name, passes=True)
    assert not page.faults


def test_a_loop_without_end_is_stopped(page):
    page.get_by_label("Exercise", exact=True).select_option(index=0)
    editor = page.get_by_label("Your function")
    editor.fill(editor.input_value().replace("raise", "while True: pass\n    raise"))
    page.get_by_role("button", name="Run its tests").click()
    page.wait_for_timeout(1000)
    page.locator(".controls", has_text="Run its tests").get_by_role("button", name="Stop").click()
    page.locator("#browser .words").get_by_text("stopped").wait_for()
    assert "deadlock" in run_lesson(page, "01_messages"), "Python starts again"


def test_a_loop_without_end_ends_after_two_minutes(page):
    page.clock.install()
    editor = page.get_by_label("Your function")
    editor.fill(editor.input_value().replace("raise", "while True: pass\n    raise"))
    page.get_by_role("button", name="Run its tests").click()
    page.clock.fast_forward(119_000)
    assert "Loading" in page.locator("#browser .words").inner_text()
    page.clock.fast_forward(2_000)
    page.locator("#browser .words").get_by_text("no end after 120 s").wait_for(timeout=5_000)


def test_what_was_written_is_kept(page):
    editor = page.get_by_label("Your function")
    editor.fill("def mine(): ...")
    page.reload()
    page.get_by_text("Nothing has run yet.").wait_for()
    assert editor.input_value() == "def mine(): ..."
    page.get_by_role("button", name="Begin again").click()
    assert "NotImplementedError" in editor.input_value()


def test_an_exercise_leads_to_its_function(page):
    exercise = Workspace(ROOT).find("binomial_broadcast")
    page.get_by_label("Exercise", exact=True).select_option(
        label=f"{exercise.name}: {exercise.title}")
    page.get_by_role("link", name=f"{exercise.file}:").click()
    assert f"def {exercise.function}(" in page.locator(":target").inner_text()


def test_without_stack_switching_the_recorded_runs_are_named(tab, address):
    tab.add_init_script("delete WebAssembly.Suspending")
    tab.goto(f"{address}/browser/")
    tab.get_by_text("cannot switch the stacks").wait_for()
    tab.locator("#browser").get_by_role("link").nth(1).click()
    assert tab.url.endswith("/lessons/01/")


def test_a_lesson_s_page_leads_here(tab, address):
    tab.goto(f"{address}/lessons/09/")
    tab.get_by_role("link", name="in your browser").click()
    tab.get_by_text("Nothing has run yet.").wait_for()
    assert tab.get_by_label("Lesson", exact=True).input_value().startswith("09 ")


@pytest.mark.slow
@pytest.mark.parametrize("name", LESSONS)
def test_every_lesson_runs(name, page):
    run_lesson(page, name)
