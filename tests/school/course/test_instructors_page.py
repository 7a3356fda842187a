"""docs/pages/instructors.md: its commands parse, its names exist, its numbers are right."""

import re
import shlex
from pathlib import Path

from minipar.commands.main import make_parser
from minipar.school.course.grading.assignment import load_assignment, names_in
from minipar.school.course.grading.tasks import ASSIGNMENTS
from minipar.school.course.lessons import lessons
from minipar.school.course.milestones.goal import milestones
from minipar.school.exercises import entries

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/pages/instructors.md").read_text(encoding="utf-8")
TASKS = [task.name for name in names_in(ASSIGNMENTS)
         for task in load_assignment(ASSIGNMENTS, [name], "").tasks]


def section(head):
    return re.split(r"^#+ ", PAGE.partition(f"# {head}\n")[2], flags=re.M)[0]


def rows(head):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in
            section(head).splitlines() if line.startswith("|") and "---" not in line][1:]


def test_every_command_parses_and_builds_the_points_that_are_promised():
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.S)).replace("\\\n", " ")
    words = [shlex.split(line, comments=True) for line in re.findall(r"minipar (.+)", blocks)]
    assert len(words) == 8
    parsed = [make_parser().parse_args(one) for one in words]
    build = next(options for options in parsed if options.action == "build")
    points = load_assignment(ASSIGNMENTS, build.exercises, build.key).points
    assert len(build.exercises) == 4 and f"{points} of {points} points" in PAGE
    assert PAGE.count(f"0 of {points} points") == 2


def test_names_exist():
    known = {*entries.load(ROOT), *TASKS, *names_in(ASSIGNMENTS), *milestones()}
    for head, column in (("Ten weeks", 2), ("Fifteen weeks", 2),
                         ("Beside MLSysBook, Volume II", 3),
                         ("Beside CS336, assignment 2", 2)):
        for row in rows(head):
            names = set(re.findall(r"`(\w+)`", row[column]))
            assert names <= known, (head, row)
    table = rows("Beside CMU 15-442, distributed training")
    assert [row[1].strip("`") in TASKS and row[3].strip("`") in known for row in table] == \
        [True] * 11
    assert sum(int(re.search(r"\((\d+)\)", row[0])[1]) for row in table) == 150


def test_lessons_exist_and_fifteen_weeks_have_them_all():
    numbers = {f"{lesson.number:02}" for lesson in lessons()}
    for head, column in (("Ten weeks", 1), ("Fifteen weeks", 1),
                         ("Beside MLSysBook, Volume II", 2), ("Beside CS336, assignment 2", 1),
                         ("Beside CMU 15-442, distributed training", 2)):
        found = [number for row in rows(head) for number in re.findall(r"\b\d\d\b", row[column])]
        assert set(found) <= numbers, head
        if head == "Fifteen weeks":
            assert sorted(found) == sorted(numbers), "docs/pages/instructors.md"
    assert [len(rows(head)) for head in ("Ten weeks", "Fifteen weeks")] == [10, 15]
    assert [row[0] for row in rows("Beside MLSysBook, Volume II")] == [*map(str, range(1, 17))]


def test_each_assignment_goes_out_before_it_is_due_and_its_hours_fit():
    hours = {name: load_assignment(ASSIGNMENTS, [name], "").parts[0].meta["hours"]
             for name in names_in(ASSIGNMENTS)}
    for head, weeks in (("Ten weeks", 4), ("Fifteen weeks", 5)):
        events = re.findall(r"`(\w+)` (out|due)", " ".join(row[2] for row in rows(head)))
        for name in [*hours][:weeks]:
            assert [event for who, event in events if who == name] == ["out", "due"], (head, name)
        lessons_hours = 1.5 * sum(len(re.findall(r"\d\d|micro", row[1])) for row in rows(head))
        wanted = lessons_hours + sum([*hours.values()][:weeks])
        assert abs(sum(float(row[3]) for row in rows(head)) - wanted) <= 8, (head, wanted)
