"""Two ways in which narrow numbers lose: gradients below the smallest one, updates below a step.

    float16   ░░░░▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓          what each format can hold, over powers of two
    bfloat16  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓
    gradients     ▁▃▇▅▂   ─ · 2¹⁶ ▶  ▁▃▇▅▂  how many there are of each size

Loss scaling moves gradients into a format's range; float32 weights keep small updates.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ..number_formats import Format
from .colors import BLUE, DARK, GREEN, GREY, LIGHT, ORANGE, VERMILION
from .figure import empty_figure, save, tidy

COLORS = (VERMILION, BLUE, GREEN, ORANGE)


def draw_precision(path: str | Path, formats: Sequence[Format], gradients: Mapping[str, np.ndarray],
                   drift: Mapping[str, Sequence[float]], title: str = "",
                   between: tuple[int, int] = (-50, 20)) -> Path:
    """Draw formats above gradients, and at the right how a weight moves; return the path written.

    `gradients` are numbers by what they are called, of which the zeros are left out; `drift` gives
    the values of a weight after each update, by how it is kept.  Powers of two `between` these are
    shown.  Raises ValueError where one of the three is empty.
    """
    if not (formats and gradients and drift):
        raise ValueError("give at least one format, one set of gradients and one weight")
    figure = empty_figure(11, 4.8, title)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.75, 1), height_ratios=(1, 1.5))
    line = figure.add_subplot(grid[0, 0])
    below = figure.add_subplot(grid[1, 0], sharex=line)
    right = figure.add_subplot(grid[:, 1])
    for axes in (line, below, right):
        tidy(axes)
    for row, fmt in enumerate(reversed(formats)):
        ends = np.log2([fmt.smallest_subnormal, fmt.smallest_normal, fmt.max])
        line.barh(row, ends[1] - ends[0], left=ends[0], color=GREY, height=0.6)
        line.barh(row, ends[2] - ends[1], left=ends[1], color=BLUE, height=0.6)
    line.set_yticks(range(len(formats)), [fmt.name for fmt in reversed(formats)])
    line.set_title("what formats hold (grey: with fewer digits)", fontsize=9, loc="left")
    line.tick_params(labelbottom=False)
    bins = np.arange(between[0], between[1] + 1)
    for (name, values), color in zip(gradients.items(), COLORS):
        powers = np.log2(np.abs(values[values != 0]))
        below.hist(powers, bins=bins, weights=np.full(powers.size, 100 / values.size),
                   histtype="stepfilled", alpha=0.55, color=color, label=name)
    zero = np.log2(formats[0].smallest_subnormal / 2)
    below.axvline(zero, color=DARK, linestyle="--", linewidth=1)
    below.annotate(f"0 in {formats[0].name}", (zero - 0.5, 0.98),
                   xycoords=("data", "axes fraction"), va="top", ha="right", fontsize=8.5,
                   color=DARK)
    below.margins(y=0.15)
    below.set_xlim(*between)
    below.set_xlabel("size, as a power of two")
    below.set_ylabel("% of all gradients")
    below.legend(fontsize=8.5, frameon=False)
    for (name, values), color in zip(drift.items(), (BLUE, VERMILION, GREEN, ORANGE)):
        right.plot(values, color=color, label=name, linewidth=1.6)
    right.set_title("a weight of 1, and many small updates", fontsize=9, loc="left")
    right.set_xlabel("update")
    right.set_ylabel("the weight")
    right.grid(color=LIGHT)
    right.set_axisbelow(True)
    right.legend(fontsize=8.5, framealpha=1, edgecolor="none")
    return save(figure, path)
