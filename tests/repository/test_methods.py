"""A method is short: at most 60 lines of code for each that a file holds.

So a page can show a method whole.  The methods follow from the tables: strategies that do not equal
one process, wires that send few numbers or bits, the advanced schedules, and all optimizers.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from minipar.optim.registry import OPTIMIZERS
from minipar.parallel.pipeline.schedule import advanced
from minipar.parallel.pipeline.schedule.registry import SCHEDULES
from minipar.parallel.registry import STRATEGIES
from minipar.parallel.strategy import Strategy
from minipar.parallel.wire_formats.registry import WIRES, tensor_wire
from tests.repository.test_layering import ROOT, lines_of_code

MOST = 60


def methods() -> Iterator[Callable[..., Any]]:
    """The class or function of each."""
    yield from (entry.kind for entry in STRATEGIES.values()
                if entry.specification is not Strategy)
    yield from filter(None, map(tensor_wire, WIRES))
    yield from (entry.make for entry in SCHEDULES.values()
                if entry.make.__module__.startswith(advanced.__name__))
    yield from (entry.kind for entry in OPTIMIZERS.values())


def test_a_method_has_at_most_60_lines():
    found = Counter(method.__module__ for method in methods())
    assert sum(found.values()) >= 30 and len(found) >= 25      # the tables are not empty
    lines = {}
    for module, number in found.items():
        text = (ROOT / str(sys.modules[module].__file__)).read_text("utf-8")
        lines[module] = len(lines_of_code(text)) / number
    too_long = {module: count for module, count in lines.items() if count > MOST}
    assert not too_long, "say it with less, or let neighbours share a base"
