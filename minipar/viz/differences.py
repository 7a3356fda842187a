"""The differences of two layouts: where the first one is, and how it spreads.

                 forward   backward  gradient  update
    embed          ·          ▓                            a row for each array, in program order;
    h.0.ln_1       ·          ▓                            the colour says how many times the
    h.0.attn       ·          ▓                            difference is what rounding may do: white
    …              ·          ░                            below it, dark far above it
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.patches import Patch

from .figure import legend_below, new_panels, save

COLUMNS = {"forward": ("forward", "loss"), "backward": ("backward",),
           "gradient": ("local gradient", "gradient", "norm"),
           "update": ("state", "parameter", "initial")}
LEVELS = {      # times what rounding may do, from which on: colour and meaning
    0.0: ("#e8f1e4", "equal"), 0.01: ("#c5dfba", "rounding"), 1.0: ("#f6c46b", "above rounding"),
    1e3: ("#e0762f", "1,000 times"), 1e6: ("#a31621", "a million times, or more")}
NOTHING = "#ffffff"
MOST_ROWS = 90          # of a panel


class Gap(Protocol):
    """A difference, as compare/ finds it: key (step, phase, name) and how often rounding it is."""

    key: tuple[int, str, str]
    ratio: float


class Difference(Protocol):
    """What a comparison found: its verdict, and the gaps in float64 or in a lower precision."""

    verdict: str
    gaps: Sequence[Gap]
    low_gaps: Sequence[Gap]


def grid_of(gaps: Sequence[Gap]) -> tuple[list[str], np.ndarray]:
    """The rows, in program order, and the largest ratio of each by column.

    A parameter is in the row of its module, if that has one.
    """
    gaps = sorted(gaps, key=lambda gap: gap.key[1] == "initial")
    names = list(dict.fromkeys(gap.key[2].rpartition(" of ")[2] for gap in gaps))
    rows = {name: module if (module := name.rpartition(".")[0]) in names else name
            for name in names}
    names = list(dict.fromkeys(name if name in COLUMNS["forward"] else rows[name] if
                               name.rpartition(".")[2] in ("weight", "bias") else name
                               for name in names))
    rows = {name: row if row in names else name for name, row in rows.items()}
    ratios = np.full((len(names), len(COLUMNS)), np.nan)
    for gap in gaps:
        name = gap.key[2].rpartition(" of ")[2]
        row = names.index(rows[name] if gap.key[1] in COLUMNS["gradient"] + COLUMNS["update"]
                          else name)
        column = next(i for i, phases in enumerate(COLUMNS.values()) if gap.key[1] in phases)
        ratios[row, column] = np.fmax(ratios[row, column], gap.ratio)
    return names, ratios


def draw_difference(path: str | Path, found: Difference) -> Path:
    """Draw the step in which the first difference is, or the last one; return the path written."""
    gaps = found.gaps if any(not gap.ratio <= 1 for gap in found.gaps) or not found.low_gaps \
        else found.low_gaps
    step = next((gap.key[0] for gap in gaps if not gap.ratio <= 1), max(
        (gap.key[0] for gap in gaps), default=0))
    names, ratios = grid_of([gap for gap in gaps if gap.key[0] == step])
    columns = -(-len(names) // MOST_ROWS) or 1
    rows = -(-len(names) // columns)
    figure, [panels] = new_panels(5.2 * columns, 1.6 + 0.155 * rows,
                                  f"{found.verdict}: step {step}", columns=columns)
    starts = list(LEVELS)
    colors = ListedColormap([color for color, _ in LEVELS.values()])
    colors.set_bad(NOTHING)
    for i, axes in enumerate(panels):
        here = slice(i * rows, (i + 1) * rows)
        axes.pcolormesh(np.ma.masked_invalid(np.minimum(ratios[here], 1e300)), cmap=colors,
                        norm=BoundaryNorm([*starts, np.inf], len(starts)), edgecolors="white",
                        linewidth=0.6)
        axes.set_ylim(len(names[here]), 0)
        axes.set_yticks(np.arange(len(names[here])) + 0.5, names[here], fontsize=6.5)
        axes.set_xticks(np.arange(len(COLUMNS)) + 0.5, list(COLUMNS), fontsize=8.5)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
    legend_below(figure, [Patch(color=color, label=text) for color, text in LEVELS.values()], 5)
    return save(figure, path)
