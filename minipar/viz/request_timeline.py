"""Requests over time: when each one waits, when its prompt is computed, when it gets tokens.

    A  ▒▒▇▇▇▇▇▇              ▒ prompt   ▇ one token   ─ waits
    B  ──────▒▒▇▇▇▇          one column for each step, as wide as the step takes

One panel for each way of scheduling the same requests; a black line ends its last step.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from .colors import BLACK, BLUE, GREY, ORANGE, RED
from .figure import empty_figure, legend_below, save, tidy

TimedStep = tuple[float, float, Mapping[str, Any]]


def draw_request_timeline(path: str | Path, runs: Mapping[str, Sequence[TimedStep]],
                          arrivals: Mapping[str, float], title: str = "") -> Path:
    """Draw {way: [(begin, end, step), …]} in seconds; return the path written.

    A step is a record as `minipar replay` prints it; `arrivals` are the seconds at which each
    request comes.  Raises ValueError for a way without steps.
    """
    if not runs or not all(runs.values()):
        raise ValueError("expected at least one way of scheduling, each with at least one step")
    height = 0.7 + 0.3 * len(arrivals)
    figure = empty_figure(9, 1.2 + height * len(runs), title)
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, steps) in zip(panels, runs.items()):
        axes.set_title(name, loc="left", fontsize=10)
        _draw_panel(axes, steps, arrivals)
    panels[-1].set_xlabel("milliseconds")
    handles = [Patch(facecolor=ORANGE, label="prompt, and the first token"),
               Patch(facecolor=BLUE, label="one more token"),
               Line2D([], [], color=GREY, linewidth=3, label="waits"),
               Line2D([], [], color=BLACK, linewidth=1.2, label="all are answered")]
    if any(step.get("preempted") for steps in runs.values() for _, _, step in steps):
        handles.append(Line2D([], [], color=RED, marker="v", linestyle="", label="preempted"))
    legend_below(figure, handles, columns=5)
    return save(figure, path)


def _draw_panel(axes: Axes, steps: Sequence[TimedStep], arrivals: Mapping[str, float]) -> None:
    rows = {name: row for row, name in enumerate(arrivals)}
    ends, cells = dict(arrivals), []
    for begin, end, step in steps:
        for name, _, num_tokens, _ in step["scheduled"]:
            ends[name] = end
            is_prompt = num_tokens > 1 or name in step.get("admitted", ())
            cells.append(Rectangle((1e3 * begin, rows[name] - 0.36), 1e3 * (end - begin), 0.72,
                                   facecolor=ORANGE if is_prompt else BLUE, edgecolor="white"))
        for name in step.get("preempted", ()):
            axes.plot(1e3 * begin, rows[name] - 0.36, "v", color=RED, zorder=4)
    for name, row in rows.items():
        axes.plot([1e3 * arrivals[name], 1e3 * ends[name]], [row, row], color=GREY, linewidth=3,
                  solid_capstyle="butt", zorder=1)
    axes.add_collection(PatchCollection(cells, match_original=True, zorder=2))
    axes.axvline(1e3 * max(ends.values()), color=BLACK, linewidth=1.2)
    axes.set_yticks(list(rows.values()), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_ylabel("request")
    tidy(axes)
