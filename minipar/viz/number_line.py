"""The positive numbers of number formats on one logarithmic line, subnormal ones in their colour.

Where normal numbers lie as dense in each octave, relative errors are alike; below, subnormal ones
thin out towards the smallest, and beside it there is only zero.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..number_formats import Format
from .colors import BLUE, DARK, ORANGE
from .figure import new_figure, save, tidy

DENSE = 4       # with more fraction bits, the strokes of an octave run together: a bar
HALF = 0.3      # height of a stroke


def draw_number_lines(path: str | Path, formats: Sequence[Format], title: str = "",
                      between: tuple[float, float] | None = None) -> Path:
    """Draw a line for each of `formats`, the first on top; return the path written.

    `between` are the smallest and the largest number of the picture (by default all are in it); a
    format that goes on beyond says up to where.  Raises ValueError where there is nothing to draw.
    """
    if not formats:
        raise ValueError("no formats to draw: give at least one")
    low, high = between or (min(f.smallest_subnormal for f in formats), max(f.max for f in formats))
    if not 0 < low < high:
        raise ValueError(f"numbers 0 < low < high were expected, not between=({low}, {high})")
    figure, axes = new_figure(10.5, 1.5 + 0.52 * len(formats), title)
    first, last = math.log2(low) - 0.7, math.log2(high) + 0.7
    for row, fmt in enumerate(formats):
        _draw(axes, fmt, row, (first, last))
    axes.set_xlim(first, last)
    axes.set_ylim(len(formats) - 0.4, -0.6)
    axes.set_yticks(range(len(formats)), [f.name for f in formats])
    axes.tick_params(axis="y", length=0)
    step = max(1, round((last - first) / 12))
    axes.set_xticks(range(math.ceil(first / step) * step, math.floor(last) + 1, step))
    axes.xaxis.set_major_formatter(lambda power, _: f"$2^{{{power:.0f}}}$")
    axes.set_xlabel("absolute value (logarithmic)")
    tidy(axes, "x")
    axes.spines["left"].set_visible(False)
    for color, label in ((BLUE, "normal: all digits"), (ORANGE, "subnormal: fewer digits")):
        axes.plot([], [], color=color, linewidth=5, label=label)
    figure.legend(frameon=False, ncols=2, loc="outside lower right", fontsize=9)
    return save(figure, path)


def _draw(axes, fmt: Format, row: int, limits: tuple[float, float]) -> None:
    subnormal, normal = powers_of(fmt)
    for powers, color in ((subnormal, ORANGE), (normal, BLUE)):
        seen = powers[(powers >= limits[0]) & (powers <= limits[1])]
        if fmt.mantissa_bits > DENSE and color == BLUE and seen.size:
            axes.fill_between([seen[0], seen[-1]], row - HALF, row + HALF, color=color, linewidth=0)
        else:
            axes.vlines(seen, row - HALF, row + HALF, color=color, linewidth=0.9)
    about = f"fraction bits {fmt.mantissa_bits}, largest {fmt.max:.5g}"
    axes.annotate(about, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8.5,
                  color=DARK)
    for power, end, arrow, align in ((subnormal[0], limits[0], "←", "left"),
                                     (normal[-1], limits[1], "→", "right")):
        if (power < end) == (arrow == "←") and power != end:
            words = (arrow, f"$2^{{{power:.0f}}}$")
            axes.text(end, row, " ".join(words if arrow == "←" else words[::-1]), ha=align,
                      va="center", fontsize=8.5, color="white",
                      bbox={"facecolor": BLUE, "linewidth": 0, "pad": 2})


def powers_of(fmt: Format) -> tuple[np.ndarray, np.ndarray]:
    """The binary logarithms of the positive numbers: subnormal ones, normal ones."""
    numbers = fmt.decode(np.arange(1, 1 << (fmt.bits - 1)).astype(fmt.dtype))
    numbers = np.unique(numbers[np.isfinite(numbers)]).astype(np.float64)
    powers = np.log2(numbers)
    return powers[numbers < fmt.smallest_normal], powers[numbers >= fmt.smallest_normal]
