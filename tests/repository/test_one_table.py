"""Strategies, schedules and algorithms stand in one table each, from which all else follows.

A second list of their names, typed somewhere, would be forgotten when one is added.  So in
minipar/, tests/ and docs/ no list, tuple or set may hold all names of a table, or all but one; in
tests/ and docs/ no dict either.  (In minipar/ dicts are the tables themselves, and those of costs,
which have tests of their own.)
"""

import ast
import re
from pathlib import Path

import pytest

from minipar.comm.algorithms import ALGORITHMS
from minipar.comm.collectives.operations import OVER_NODES, own_options
from minipar.commands.main import make_parser
from minipar.optim.registry import OPTIMIZERS
from minipar.parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from minipar.parallel.registry import STRATEGIES, make_strategy
from minipar.parallel.wire_formats.registry import WIRES, tensor_wire
from minipar.train.config import OPTIONS
from tests.repository.test_layering import tree_of

ROOT = Path(__file__).parents[2]
FEWEST = 4              # names of a table; a list of two or three may be a choice of its own
TABLES = {"strategies": STRATEGIES, "schedules": SCHEDULES,
          **{operation: names for operation, names in ALGORITHMS.items() if len(names) >= FEWEST}}


def copies(source: str, with_dicts: bool = True) -> list[tuple[int, str]]:
    """(line, table) of each list, … or dict with nearly all names of a table; not `__all__`."""
    if not any(sum(name in source for name in entries) >= len(entries) - 1
               for entries in TABLES.values()):
        return []                       # it need not be parsed
    tree, found = ast.parse(source), []
    exported = {id(node.value) for node in tree.body if isinstance(node, ast.Assign)
                and getattr(node.targets[0], "id", "") == "__all__"}
    for node in ast.walk(tree):
        items = (node.elts if isinstance(node, ast.List | ast.Tuple | ast.Set) else
                 node.keys if isinstance(node, ast.Dict) and with_dicts else [])
        if items and id(node) not in exported:
            names = {item.value for item in items if isinstance(item, ast.Constant)}
            found += [(node.lineno, table) for table, entries in TABLES.items()
                      if len(names & entries.keys()) >= len(entries) - 1]
    return found


def folder_of(path: Path) -> str:
    """The top folder of a file."""
    return path.relative_to(ROOT).parts[0]


def test_no_list_of_their_names_is_typed_again():
    assert copies(f"NAMES = {[*SCHEDULES][1:]}") == [(1, "schedules")]
    files = [path for folder in ("minipar", "tests", "docs")
             for path in (ROOT / folder).rglob("*.py")]
    again = {f"{path.relative_to(ROOT)}:{line} lists {table}"
             for path in files
             for line, table in copies(path.read_text("utf-8"), folder_of(path) != "minipar")}
    assert not again, "let it follow from the table"


def test_interactive_pieces_find_the_algorithms_in_the_table():
    """A new algorithm needs no edit there: no piece that lists algorithms names one."""
    for name in ("collective", "crossovers"):
        source = (ROOT / "docs" / "interactive" / name / "data.py").read_text("utf-8")
        words = {node.value for node in ast.walk(ast.parse(source))
                 if isinstance(node, ast.Constant)}
        assert not words & {name for names in ALGORITHMS.values() for name in names}, name


def test_algorithms_with_options_of_their_own():
    found = {(operation, name): own for operation, names in ALGORITHMS.items() for name in names
             if (own := own_options(operation, name))}
    assert found == {("broadcast", "pipelined_chain"): {"num_segments"},
                     ("all_reduce", "blocked_ring"): {"block_bytes"},
                     **{("all_reduce", name): {"ranks_per_node"} for name in OVER_NODES}}


def test_contributing_names_each_file_that_knows_most_of_the_names():
    text, places = (ROOT / "CONTRIBUTING.md").read_text("utf-8"), "minipar/comm/collectives"
    for path in (ROOT / "minipar").rglob("*.py"):
        file = str(path.relative_to(ROOT))
        words = {node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant)}
        for table, entries in TABLES.items():
            if len(words & entries.keys()) > len(entries) / 2 and not file.startswith(places):
                assert "/".join(path.parts[-2:]) in text, f"{file} knows most {table}"


ROWS = {        # of each table: its names, and where, in one place or another, each has a row
    "strategies": (STRATEGIES, ("rosetta.md", "## Strategies"),
                   ("slow_networks.md", "## Seldom: ranks that train apart")),
    "schedules": (SCHEDULES, ("pipelines.md", "## Schedules")),
    "collectives": (ALGORITHMS, ("rosetta.md", "## Collectives")),
    "wires": ({name for name in WIRES if tensor_wire(name)},
              ("slow_networks.md", "## Few numbers, few bits: wires"))}


@pytest.mark.parametrize("table", ROWS)
def test_a_page_has_one_row_for_each(table):
    names, *places = ROWS[table]
    rows = [name for page, heading in places for cell in first_cells(page, heading)
            for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(rows) == sorted(names), "one row for each entry of the table, " + " or ".join(
        f"in docs/pages/{page}, {heading}" for page, heading in places)


def first_cells(page: str, heading: str) -> list[str]:
    """The first cell of each row of the tables below a heading."""
    text = (ROOT / "docs" / "pages" / page).read_text("utf-8")
    section = text.split(f"\n{heading}\n")[1].split("\n## ")[0]
    return [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]


def test_running_has_a_row_with_the_learning_rate_of_each_optimizer():
    page = (ROOT / "docs" / "pages" / "running.md").read_text("utf-8")
    table = page.split("| name | step |")[1].split("\n\n")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    assert {cells[1].strip(" `"): float(cells[-2]) for cells in rows} == {
        name: entry.lr for name, entry in OPTIMIZERS.items()}


def test_rosetta_names_files_that_exist():
    page = (ROOT / "docs" / "pages" / "rosetta.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w/]+(?:\.py|/))`", row)}
    assert len(named) > 15
    missing = {name for name in named if not (ROOT / "minipar" / name).exists()
               and not (ROOT / "minipar" / "parallel" / name).exists()}
    assert not missing, "docs/pages/rosetta.md"


def test_an_added_strategy_is_found_by_its_name(monkeypatch):
    mine = STRATEGIES["ddp"]._replace(kind=lambda model, comm: model)
    monkeypatch.setitem(STRATEGIES, "mine", mine)
    assert make_strategy("mine", "model", None) == "model"
    with pytest.raises(ValueError, match=", mine, or give"):
        make_strategy("other", "model", None)


def test_an_added_schedule_is_found_by_its_name(monkeypatch, capsys):
    monkeypatch.setitem(SCHEDULES, "mine", SCHEDULES["interleaved"])
    assert make_schedule("mine", 2, 4) == make_schedule("interleaved", 2, 4)
    with pytest.raises(SystemExit):
        make_parser().parse_args(["schedule", "--help"])
    assert ",mine}" in " ".join(capsys.readouterr().out.split())


def test_the_choices_of_train_are_the_tables():
    assert OPTIONS["strategy"].table is STRATEGIES and OPTIONS["schedule"].table is SCHEDULES
