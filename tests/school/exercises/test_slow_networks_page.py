"""Methods that are exercises: the table of docs/pages/slow_networks.md."""

import re
from pathlib import Path

from minipar.optim.registry import OPTIMIZERS
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.parallel.registry import STRATEGIES
from minipar.parallel.wire_formats.registry import WIRES
from minipar.school.exercises import entries

ROOT = Path(__file__).parents[3]
LINES = (ROOT / "docs/pages/slow_networks.md").read_text("utf-8").partition("## Write them")[2]
TABLE = [line.split("|")[1:3] for line in LINES.splitlines() if line.startswith("| `")]
CATALOG = entries.load(ROOT)


def test_the_table_names_methods():
    named = {name for method, _ in TABLE for name in re.findall(r"`(\w+)`", method)}
    assert len(named) > 20 and named <= {*WIRES, *STRATEGIES, *OPTIMIZERS, *SCHEDULES}


def test_each_has_an_exercise_with_at_least_five_wrong_answers():
    for method, cell in TABLE:
        names = re.findall(r"`(\w+)`", cell)
        assert names and set(names) <= set(CATALOG), method
        assert all(len(CATALOG[name].mutants) >= 5 for name in names), method
