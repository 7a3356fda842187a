"""Lines of code of the rooms, at most.  A number goes up only in a commit that says why."""

from tests.repository.test_layering import ROOT, lines_of_code

BUDGETS = {             # rooms together: lines without blanks, comments and docstrings
    ("autograd", "nn", "optim"): 3297,
    ("comm",): 4556,
    ("parallel",): 5435,
    ("memory", "mixed_precision"): 1235,
    ("train", "commands"): 6156,
    ("viz",): 2549,
    ("plan",): 1802,
    ("step_simulation",): 1020,
    ("compare_runs",): 1182,
    ("gspmd",): 2512,
    ("inference", "serve", "interop"): 3799,
    ("compress",): 1878,
    ("school",): 3717,
}
ALL = 42335


def count(folder: str) -> int:
    """The lines of code of a folder of minipar."""
    return sum(len(lines_of_code(file.read_text("utf-8")))
               for file in (ROOT / "minipar" / folder).rglob("*.py"))


def test_every_room_keeps_its_budget():
    rows = [(" + ".join(rooms), sum(map(count, rooms)), most) for rooms, most in BUDGETS.items()]
    rows.append(("minipar", count("."), ALL))
    table = "\n".join(f"{room:32} {lines:6,} of {most:6,}{' !' * (lines > most)}"
                      for room, lines, most in rows)
    print(table)            # pytest -s shows it
    assert all(lines <= most for _, lines, most in rows), (
        f"write less, or raise the number here and say why in the commit:\n{table}")
