"""Each method for slow networks is an exercise: the table of docs/pages/slow_networks.md."""

import re
from pathlib import Path

from minipar.compress.gradients.tensor_wire import TensorWire
from minipar.compress.registry import WIRES
from minipar.optim.registry import OPTIMIZERS
from minipar.parallel.data.trained_apart import TrainedApart
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.parallel.registry import STRATEGIES
from minipar.school.exercises import entries

ROOT = Path(__file__).parents[3]
LINES = (ROOT / "docs/pages/slow_networks.md").read_text("utf-8").partition("## Write them")[2]
TABLE = [line.split("|")[1:3] for line in LINES.splitlines() if line.startswith("| `")]
CATALOG = entries.load(ROOT)


def test_every_method_is_in_the_table():
    wires = {name for name, kind in WIRES.items()
             if isinstance(kind, type) and issubclass(kind, TensorWire)}
    apart = {name for name, entry in STRATEGIES.items() if issubclass(entry.kind, TrainedApart)}
    optimizers = {name for name, entry in OPTIMIZERS.items() if "whole_tensors" in
                  entry.kind.__module__ or name == "adamw_8bit"}
    schedules = {name for name, entry in SCHEDULES.items() if "advanced" in entry.make.__module__}
    named = {name for method, _ in TABLE for name in re.findall(r"`(\w+)`", method)}
    assert wires | apart | optimizers | schedules | {"pipedream", "two_bw", "terapipe"} == named


def test_every_method_has_an_exercise_with_at_least_five_wrong_answers():
    for method, cell in TABLE:
        names = re.findall(r"`(\w+)`", cell)
        assert names and set(names) <= set(CATALOG), method
        assert all(len(CATALOG[name].mutants) >= 5 for name in names), method
