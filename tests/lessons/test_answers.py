"""Each question of a lesson has one answer, which both the docs and the terminal show."""

import ast
import re
import sys
from pathlib import Path

import pytest

from minipar.comm import Cluster
from minipar.launcher import simulate
from minipar.testing import worlds

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
PAGES = ROOT / "docs" / "pages"


@pytest.fixture
def kit(monkeypatch):
    """lessons/support/kit.py, as a lesson without words on its command line imports it."""
    monkeypatch.syspath_prepend(ROOT / "lessons")
    monkeypatch.setattr(sys, "argv", ["lesson"])
    from support import kit
    return kit


def questions_of(lesson: Path) -> list[str]:
    """The questions at the end of a lesson's source."""
    lists = [keyword.value for node in ast.walk(ast.parse(lesson.read_text(encoding="utf-8")))
             if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "exercises"
             for keyword in node.keywords if keyword.arg == "questions"]
    assert len(lists) == 1
    return ast.literal_eval(lists[0])


def says(lesson: str, *texts: str) -> None:
    """Assert that the answers of a lesson contain these words, wherever lines end."""
    page = " ".join((PAGES / "lessons" / f"{lesson}.md").read_text("utf-8").split())
    for text in texts:
        assert text in page, f"lessons/{lesson}.md does not say {text!r}"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_questions_and_answers_go_together(kit, lesson):
    answers = kit.page.answers_of(lesson.stem)
    assert list(answers) == questions_of(lesson)
    assert all(40 < len(answer) < 1000 for answer in answers.values())


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_the_lists_give_the_question_of_a_lesson(lesson):
    first = " ".join(lesson.read_text(encoding="utf-8").split("\n", 1)[0].split())
    question = first.split(". ", 1)[1]
    number = lesson.name[:2]
    assert (f"| {number} | {question} | [page](lessons/{number}.md) |\n"
            in (PAGES / "course.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)
def test_the_page_of_a_lesson(lesson):
    """Its title is the lesson's; nothing but answers is folded; the course links to it."""
    text = (PAGES / "lessons" / f"{lesson.name[:2]}.md").read_text(encoding="utf-8")
    first = lesson.read_text(encoding="utf-8").splitlines()[0].removeprefix('"""')
    assert text.startswith(f"# {' '.join(first.split())}\n")
    assert f"lessons/{lesson.name}" in text
    folds = re.findall(r"^<details markdown>\n<summary>[^<]+</summary>\n\n[^<]+\n\n</details>$",
                       text, re.MULTILINE)
    assert len(folds) == text.count("<details") == text.count("</details>")
    assert not re.search(r"^([-+*#>]|\d+[.)]) ", text.partition("## Questions")[2], re.MULTILINE), \
        "a line of text that Markdown takes for a list or a heading"
    assert f"](lessons/{lesson.name[:2]}.md)" in (PAGES / "course.md").read_text(encoding="utf-8")


def test_no_page_is_left_over():
    pages = {page.stem for page in (PAGES / "lessons").iterdir()}
    assert pages == {lesson.name[:2] for lesson in LESSONS}


@pytest.mark.parametrize("asked", [False, True])
def test_the_terminal_answers_if_asked(kit, capsys, monkeypatch, asked):
    monkeypatch.setattr(sys, "argv", ["lesson", *["--answers"] * asked])
    questions = questions_of(LESSONS[0])
    simulate(lambda comm: kit.Lesson(comm, str(LESSONS[0]), "Lesson 00. ?")
             .exercises(questions=questions), Cluster(2))
    printed = " ".join(capsys.readouterr().out.split())
    for question, answer in kit.page.answers_of(LESSONS[0].stem).items():
        assert printed.count(f"• {question}") == 1, "not once: rank 0 alone prints"
        assert printed.count(" ".join(answer.split())) == asked
    assert ("--answers" in printed) != asked, "who has no answers is told how to get them"


@worlds(3, mpi=(2,))
@pytest.mark.parametrize("shared", [False, True])
def test_ranks_that_share_cores_are_told(world, kit, monkeypatch, capsys, shared):
    """Simulated ranks share nothing: their time is virtual."""
    def body(comm):
        monkeypatch.setattr(kit, "cores", lambda: [0] if shared else [comm.rank, 7])
        kit.Lesson(comm, "lessons/00_x.py", "Lesson 00. ?")
        return comm.rank
    ranks, printed = world.run(body), capsys.readouterr().out
    is_told = shared and 0 in ranks and len(ranks) == 1
    assert ("2 ranks share 1 core: " in printed) == is_told
    assert ("share" in printed) == is_told
