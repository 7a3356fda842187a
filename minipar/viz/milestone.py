"""A milestone: the learner's run beside the reference's, losses at the left, bytes at the right."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from .colors import BLUE, GREY, RED
from .figure import empty_figure, legend_below, save, tidy


class MilestoneRun(NamedTuple):
    """A run by its name: losses by step, and bytes of a step of all ranks, by collective."""

    name: str
    losses: Sequence[float]
    own_losses: Sequence[float]
    sent: dict[str, int]
    own_sent: dict[str, int]
    passed: bool


def draw_milestone(path: str | Path, title: str, runs: Sequence[MilestoneRun]) -> Path:
    """Draw a row for each run: the reference in grey, the learner's in blue, or red if it differs.

    Returns the path written.
    """
    figure = empty_figure(9, 0.6 + 2.7 * len(runs), title)
    rows = figure.subplots(len(runs), 2, squeeze=False, width_ratios=[3, 2])
    for run, (left, right) in zip(runs, rows):
        color = BLUE if run.passed else RED
        left.plot(range(len(run.losses)), run.losses, color=GREY, linewidth=6, label="reference",
                  solid_capstyle="round")
        left.plot(range(len(run.own_losses)), run.own_losses, color=color, linewidth=1.6,
                  marker="o", markersize=4, label="your functions")
        left.set_ylabel("loss in nats")
        left.set_title(run.name.replace("_", " "), loc="left", fontsize=10)
        left.set_xlabel("step")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        tidy(left, "both")
        names = sorted({*run.sent, *run.own_sent})
        places = range(len(names))
        for values, shift, shade in ((run.sent, 0.2, GREY), (run.own_sent, -0.2, color)):
            right.barh([place + shift for place in places],
                       [values.get(name, 0) / 1e6 for name in names], 0.36, color=shade)
        right.set_yticks(list(places), [name.replace("_", "-") for name in names])
        right.set_xlabel("MB sent in a step, all ranks")
        tidy(right, "x")
    handles, _ = rows[0][0].get_legend_handles_labels()
    legend_below(figure, handles, 2)
    return save(figure, path)
