"""A page on which one chooses a pipeline's schedule and watches bubble and memory: one file.

    write_schedule_page("out/pipelines.html", schedule="zb_h1", num_ranks=4, num_microbatches=8)

Open it in a browser.  It has sliders for ranks, microbatches, virtual stages and the times of F, I
and W, and a table of all schedules at these numbers.  `pipelines.html#schedule=1f1b&p=4&m=8` opens
the page at these numbers.

Python makes the rows of every schedule at every number that the sliders reach.  It writes them into
the page with the formulas of the table of schedules.  JavaScript (schedule.html) places the actions
in time and draws: a new schedule is on the page as soon as it is in the table.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ...parallel.pipeline.schedule.actions import Action, Together, stages_on
from ...parallel.pipeline.schedule.dependencies import OPS
from ...parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from ...parallel.pipeline.schedule.simulate import DEFAULT, Times
from ..timelines.pipeline import COLORS, IDLE, IN_MEMORY
from .page import write_page

PAGE = Path(__file__).with_name("schedule.html")
# The ends of the sliders, and their steps: (least, most, step)
LIMITS = {"p": (1, 8, 1), "m": (1, 24, 1), "v": (1, 4, 1), "f": (0.5, 4, 0.5), "i": (0.5, 4, 0.5),
          "w": (0, 4, 0.5)}
KINDS = "".join(OPS)            # F, B, I, W
TITLE = "Pipeline schedules: the bubble and what it costs to fill it"


def write_schedule_page(path: str | Path, schedule: str = "1f1b", num_ranks: int = 4,
                        num_microbatches: int = 8, virtual_stages: int = 2,
                        times: Times = DEFAULT, title: str = TITLE) -> Path:
    """Write the page, which opens with these numbers; return its path.

    `times` belong to all stages of a rank.  Raises ValueError for an unknown schedule, and for
    numbers that the page's sliders do not reach.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}: choose from {', '.join(SCHEDULES)}")
    values = (num_ranks, num_microbatches, virtual_stages, *times)
    for (name, (least, most, step)), value in zip(LIMITS.items(), values):
        if not least <= value <= most or value % step:
            raise ValueError(f"the page has {name} from {least:g} to {most:g} in steps of "
                             f"{step:g}, not {value:g}")
    start = {"schedule": schedule, **dict(zip(LIMITS, values))}
    colors = {**{kind: color for kind, color in COLORS.items() if kind != IDLE}, "kept": IN_MEMORY}
    data = {"kinds": KINDS, "start": start, "limits": LIMITS,
            "schedules": {name: tabulate(name) for name in SCHEDULES}}
    return write_page(path, PAGE, title, data, colors)


@cache
def tabulate(name: str) -> dict:
    """The table's entry of a schedule, and its rows at all numbers that the sliders reach.

    `placements["p v"]` are the stages of the ranks, `rows["p m v"]` the rows of the ranks as text
    (see `encode_row`), one after the other.
    """
    entry = SCHEDULES[name]
    placements, rows = {}, {}
    for v in slider("v") if entry.any_stages else [entry.num_stages]:
        for p in slider("p"):
            for m in slider("m"):
                schedule, placement = make_schedule(name, p, m, v)
                placements[f"{p} {v}"] = [stages_on(placement, rank) for rank in range(p)]
                rows[f"{p} {m} {v}"] = " ".join(
                    encode_row(row, stages_on(placement, rank))
                    for rank, row in enumerate(schedule))
    return {"any_stages": entry.any_stages, "num_stages": entry.num_stages,
            "makespan": entry.makespan, "placements": placements, "rows": rows}


def slider(name: str) -> range:
    """The numbers that a slider of whole numbers reaches."""
    least, most, step = LIMITS[name]
    return range(int(least), int(most) + 1, int(step))


def encode_row(row: Sequence[Action], stages: Sequence[int]) -> str:
    """A row as text, one letter an action: A for F of the first of `stages`, B for its B, …

    A capital is the microbatch after the letter's last one, a small letter the one before it.  Any
    other microbatch is a number after the letter.  1F1B's first row of 4, for 8 microbatches, is
    AAAABABABABABBBB.  A +
    stands before an action that runs together with the next one.
    """
    last: dict[int, int] = {}
    letters = []
    for action in row:
        kind, stage, microbatch = action
        number = len(KINDS) * stages.index(stage) + KINDS.index(kind)
        letter, step = chr(ord("A") + number), microbatch - last.get(number, -1)
        letters.append("+" * isinstance(action, Together))
        letters.append({1: letter, -1: letter.lower()}.get(step, f"{letter}{microbatch}"))
        last[number] = microbatch
    return "".join(letters)
