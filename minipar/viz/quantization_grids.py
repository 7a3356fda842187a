"""Histograms of numbers over the grids that they are rounded to: how large a step is."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .colors import BLUE, DARK, ORANGE
from .figure import empty_figure, save, tidy

BINS = 60


class GridPanel(NamedTuple):
    """Numbers, and the values that they are rounded to."""

    name: str
    numbers: np.ndarray
    values: np.ndarray


def draw_quantization_grids(path: str | Path, panels: Sequence[GridPanel], title: str = "",
               of: str = "weight") -> Path:
    """Draw a histogram for each panel, one below the other, over one axis; return the path.

    Raises ValueError if there is nothing to draw.
    """
    if not panels or any(panel.numbers.size == 0 for panel in panels):
        raise ValueError("no numbers to draw: give at least one panel, each with some")
    figure = empty_figure(9.5, 1.2 + 1.7 * len(panels), title)
    rows = figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0]
    reach = 1.04 * max(np.abs(panel.numbers).max() for panel in panels)
    for axes, panel in zip(rows, panels):
        numbers = panel.numbers.ravel()
        axes.hist(numbers, bins=np.linspace(-reach, reach, 2 * BINS + 1), color=BLUE,
                  label=f"{of}s")
        seen = panel.values[np.abs(panel.values) <= reach]
        top = axes.get_ylim()[1]
        axes.vlines(seen, 0, top, color=ORANGE, linewidth=0.9, label="what can be kept")
        axes.set_ylim(0, top)
        used = len(np.unique(np.abs(numbers[:, None] - panel.values).argmin(axis=1)))
        axes.set_title(f"{panel.name}: {len(panel.values)} values, {used} of them used, "
                       f"step {np.diff(panel.values).mean():.3g}", loc="left", fontsize=9.5,
                       color=DARK)
        axes.set_ylabel("how many")
        tidy(axes)
    rows[-1].set_xlim(-reach, reach)
    rows[-1].set_xlabel(f"value of a {of}")
    figure.legend(*rows[0].get_legend_handles_labels(), frameon=False, ncols=2,
                  loc="outside upper right", fontsize=9)
    return save(figure, path)
