"""Bytes through each rank, and through the busiest rank as ranks are added.

    rank 0  ████████████████          one bar a rank and a program: sent and received together;
    rank 1  ███                       beside it the tallest bar, for more and more ranks

The busiest rank sets the time: the others wait for it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.ticker import FuncFormatter, MaxNLocator

from ..units import in_bytes
from .colors import PALETTE
from .figure import empty_figure, save, tidy


def draw_rank_traffic(path: str | Path, loads: Mapping[str, Sequence[int]], title: str = "",
                 growth: Mapping[str, Mapping[int, tuple[int, int]]] | None = None) -> Path:
    """Draw `loads`, bytes through each rank by program; return the path written.

    `growth`: by program and number of ranks, bytes through the busiest rank (predicted, counted),
    as a line and dots.  Raises ValueError if the programs ran on different numbers of ranks.
    """
    num_ranks = {len(load) for load in loads.values()}
    if len(num_ranks) != 1:
        raise ValueError(f"programs on {sorted(num_ranks)} ranks: give each a load for every rank")
    figure = empty_figure(11 if growth else 6, 4.2, title)
    panels = figure.subplots(1, 2 if growth else 1, squeeze=False)[0]
    width, colors = 0.8 / len(loads), dict(zip(loads, PALETTE))
    for i, (name, load) in enumerate(loads.items()):
        places = [rank + (i - (len(loads) - 1) / 2) * width for rank in range(len(load))]
        panels[0].bar(places, load, width * 0.94, color=colors[name], label=name)
    panels[0].set_xlabel("rank")
    panels[0].set_title("through each rank", loc="left", fontsize=10.5)
    if growth:
        for name, counts in growth.items():
            panels[1].plot(list(counts), [line for line, _ in counts.values()],
                           color=colors[name], label=f"{name}, predicted")
            panels[1].plot(list(counts), [dot for _, dot in counts.values()], "o",
                           color=colors[name], label=f"{name}, counted")
        panels[1].set_xlabel("ranks")
        panels[1].set_title("through the busiest rank", loc="left", fontsize=10.5)
    for axes in panels:
        axes.set_ylabel("sent + received in a step")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: in_bytes(value)))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(0)
        axes.legend(frameon=False, fontsize=9)
        tidy(axes, "y")
    return save(figure, path)
