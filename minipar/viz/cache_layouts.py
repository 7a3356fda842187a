"""The slots of a cache under each layout: tokens, slots kept for later, waste.

    max    │▇▇▇▒▒▒░░░░░░░░░░░░░░░░│  2 wait        one bar for each layout, 100 % is the pool;
    blocks │▇▇▇▇▇▇▇░              │  none waits    white: free for any request

`inference.scheduling.fragmentation` measures the figures.
"""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from .colors import BLUE, DARK, GREY, ORANGE, VERMILION
from .figure import legend_below, new_figure, save, tidy

PARTS = {       # part: its colour and its words, in the order of the bars
    "token": (BLUE, "token"), "reserved": (ORANGE, "reserved: this request uses it later"),
    "internal": (VERMILION, "internal: this request never uses it"),
    "external": (GREY, "external: between the requests"),
    "free": ("white", "free: any request can take it")}
NARROW = 4.0            # percent; a part below it has no number


def draw_cache_layouts(path: str | Path, layouts: Mapping[str, Mapping[str, float]],
                       num_waiting: Mapping[str, int], title: str = "") -> Path:
    """Draw {layout: {part: percent of the pool}} and how many requests wait; return the path.

    Raises ValueError for parts other than PARTS, and for no layout.
    """
    unknown = {part for parts in layouts.values() for part in parts} - PARTS.keys()
    if unknown or not layouts:
        raise ValueError(f"expected at least one layout with parts {', '.join(PARTS)}, not "
                         f"{', '.join(sorted(unknown)) or 'none'}")
    figure, axes = new_figure(8.2, 1.7 + 0.55 * len(layouts), title)
    for row, (name, parts) in enumerate(layouts.items()):
        left = 0.0
        for part, (color, _) in PARTS.items():
            width = parts.get(part, 0.0)
            if width:
                axes.barh(row, width, left=left, height=0.62, color=color,
                          edgecolor=DARK if part == "free" else "white", linewidth=0.8)
            if width >= NARROW:
                axes.text(left + width / 2, row, f"{width:.0f}", ha="center", va="center",
                          fontsize=9, color="white" if color in (BLUE, VERMILION) else "black")
            left += width
        waiting = num_waiting.get(name, 0)
        words = "none waits" if not waiting else f"{waiting} wait" + "s" * (waiting == 1)
        axes.text(101.5, row, words, va="center", fontsize=9)
    axes.set_yticks(range(len(layouts)), list(layouts))
    axes.invert_yaxis()
    axes.set_xlim(0, 113)
    axes.set_xticks(range(0, 101, 20))
    axes.xaxis.set_major_formatter(PercentFormatter(100, decimals=0))
    axes.set_xlabel("slots of the pool")
    tidy(axes)
    legend_below(figure, [Patch(facecolor=color, label=words,
                                edgecolor=DARK if part == "free" else "white")
                          for part, (color, words) in PARTS.items()], columns=3)
    return save(figure, path)
