"""A page on which one chooses a pipeline's schedule and watches bubble and memory: one file.

    write_schedule_page("out/pipelines.html", schedule="zb_h1", num_ranks=4, num_microbatches=8)

Open it in a browser: sliders for ranks, microbatches, virtual stages and the times of F, I and W, a
table of all schedules at these numbers.  `pipelines.html#schedule=1f1b&p=4&m=8` opens it there.
The page makes and simulates schedules itself, in a small translation of parallel/pipeline to
JavaScript (schedule.html); a test compares both in a browser.
"""

import html
import json
import re
from pathlib import Path

from ..atomic_files import write_text
from ..parallel.pipeline import SCHEDULES, Times
from ..parallel.pipeline.schedule.simulate import DEFAULT
from .pipeline import COLORS, IDLE, KEPT

TEMPLATE = Path(__file__).with_name("schedule.html")
# The ends of the sliders, and their steps: (least, most, step)
LIMITS = {"p": (1, 8, 1), "m": (1, 24, 1), "v": (1, 4, 1), "f": (0.5, 4, 0.5), "i": (0.5, 4, 0.5),
          "w": (0, 4, 0.5)}
TITLE = "Pipeline schedules: the bubble and what it costs to fill it"


def write_schedule_page(path: str | Path, schedule: str = "1f1b", num_ranks: int = 4,
                        num_microbatches: int = 8, virtual_stages: int = 2,
                        times: Times = DEFAULT, title: str = TITLE) -> Path:
    """Write the page, which opens with these numbers; return its path.

    `times` are those of all stages of a rank.  Raises ValueError for an unknown schedule, and for
    numbers that the page's sliders do not reach.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}: choose from {', '.join(SCHEDULES)}")
    values = (num_ranks, num_microbatches, virtual_stages, *times)
    start = {"schedule": schedule, **dict(zip(LIMITS, values))}
    for name, (least, most, step) in LIMITS.items():
        if not least <= start[name] <= most or start[name] % step:
            raise ValueError(f"the page has {name} from {least:g} to {most:g} in steps of "
                             f"{step:g}, not {start[name]:g}")
    data = json.dumps({"names": [*SCHEDULES], "start": start, "limits": LIMITS})
    colors = {**{kind: color for kind, color in COLORS.items() if kind != IDLE}, "kept": KEPT}
    inserted = {"TITLE": html.escape(title), "DATA": data,
                "COLORS": " ".join(f"--{name}: {color};" for name, color in colors.items())}
    page = TEMPLATE.read_text(encoding="utf-8")
    return write_text(path, re.sub("%([A-Z]+)%", lambda mark: inserted[mark[1]], page))
