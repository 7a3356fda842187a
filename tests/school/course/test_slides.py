"""Slides: all of a lesson's page in order, on slides that are not overfull, in one file."""

import re

import pytest

from minipar.commands.main import main
from minipar.school.course.lessons import find_lesson, lessons
from minipar.school.course.packaging import slides

PNG = b"not looked at"


@pytest.fixture
def run(tmp_path):
    """The folder of a lesson's run, without running it."""
    for lesson in lessons():
        folder = tmp_path / "out" / f"{lesson.number:02}"
        folder.mkdir(parents=True)
        (folder / "picture.png").write_bytes(PNG)
        (folder / "report.md").write_text("Words.\n\n**Takeaway:** Two\nlines.\n\nMore.\n")
        (folder / "lesson.json").write_text("{}")
    return tmp_path / "out"


def test_every_lesson_has_slides_with_all_of_its_page(run):
    page = slides.page_module()
    for lesson in lessons():
        found = [*slides.slides_of(lesson, run / f"{lesson.number:02}")]
        text, name = "\n".join(found), lesson.script.stem
        assert found[0] == f"# {lesson.question}"
        steps = re.findall(r"^\d+\. ", page.sections(name)[page.DERIVATION], re.M)
        assert len(re.findall(r"^\d+\. ", text, re.M)) >= len(steps) >= 3, name
        for line in page.shown(name).text.split("\n"):
            assert line in text, (name, line)
        assert all(question in text for question in page.answers_of(name)), name
        assert "<details" not in text and "Two\nlines." in text and "More." not in text
        for slide in found:
            lines = slide.split("\n")
            assert len(lines) <= 32, (name, slide)
            assert "python lessons/" not in slide and "The library's" not in slide
            assert all(len(line) <= 105 for line in lines if line.startswith("    ")), name


def test_code_is_cut_at_empty_lines():
    lines = [f"x{i}" if i % 9 else "" for i in range(1, 60)]
    parts = [*slides.pages_of_code(lines)]
    assert all(len(part.split("\n")) <= slides.MOST_CODE for part in parts) and len(parts) == 4
    assert [line for part in parts for line in part.split("\n") if line] == [*filter(None, lines)]


def test_one_file_without_network(run, tmp_path, monkeypatch, capsys):
    from minipar.commands.course import assignment
    monkeypatch.setattr(assignment, "default_out", lambda: run)
    assert main(["course", "slides", "12", "--out", str(tmp_path / "slides")]) == 0
    path = tmp_path / "slides" / f"{find_lesson('12').script.stem}.html"
    assert capsys.readouterr().out.strip() == str(path)
    text = path.read_text()
    assert text.count("<section>") >= 8 and "@page" in text and "<script" not in text
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", text) and "data:image/png" in text
    assert main(["course", "slides", "99", "--out", str(tmp_path / "none")]) == 2
    assert "there is no lesson 99" in capsys.readouterr().err
