"""Distributions: numbers in narrow formats, a teacher's probabilities, differences of two runs.

    float16   ░░░░▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓          draw_precision: what each format can hold, over powers of
    bfloat16  ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓       two, and how many gradients there are of each size.
    gradients     ▁▃▇▅▂   ─ · 2¹⁶ ▶  ▁▃▇▅▂  Loss scaling moves them into a format's range.

    ▒▓▒ │      █      │      █      │     ▂█▁▃▁     draw_soft_targets: softmax(logits / T); a
    the │   label     │    T = 1    │     T = 4     high temperature T lifts the probabilities of
                                                    the wrong classes

                 forward   backward   gradient   update        draw_difference: two layouts of one
    h.0.ln_1        ·         ▓          ▓         ▓           run; a row for each module, colours
    h.0.attn        ·         ▓          ▓         ▓           say how far above rounding they are
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import NamedTuple, Protocol

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.patches import Patch

from ...number_formats import Format
from ..colors import BLUE, DARK, GREEN, GREY, ORANGE, VERMILION
from ..figure import empty_figure, legend_below, new_panels, save, tidy

BINS = 60       # of a histogram, at each side of 0
POWERS = -50, 20        # powers of two that are shown
TELL = 0.01     # probabilities of at least this are written above their bars
COLUMNS = {"forward": ("layout", "forward", "loss"), "backward": ("backward",),
           "gradient": ("local gradient", "gradient", "norm"),
           "update": ("state", "parameter", "initial")}
LEVELS = {      # by the least multiple of rounding: (colour, meaning)
    0.0: ("#e8f1e4", "equal"), 0.01: ("#c5dfba", "rounding"), 1.0: ("#f6c46b", "above rounding"),
    1e3: ("#e0762f", "1,000 × rounding"), 1e6: ("#a31621", "a million × rounding, or more")}
NOTHING = "#ffffff"
MOST_ROWS = 90          # of a panel


class GridPanel(NamedTuple):
    """Numbers, and the values that they are rounded to."""

    name: str
    numbers: np.ndarray
    values: np.ndarray


def draw_precision(path: str | Path, formats: Sequence[Format], gradients: Mapping[str, np.ndarray],
                   drift: Mapping[str, Sequence[float]], title: str = "") -> Path:
    """Draw formats above gradients, and at the right how a weight moves; return the path written.

    `gradients` are numbers by name; zeros are left out.  `drift` gives the values
    of a weight after each update, for each way to keep it.  Raises ValueError if one of the three
    is empty.
    """
    if not (formats and gradients and drift):
        raise ValueError("give at least one format, one set of gradients and one weight")
    figure = empty_figure(11, 4.8, title)
    axes = figure.subplot_mosaic([["formats", "drift"], ["gradients", "drift"]],
                                 width_ratios=(1.75, 1), height_ratios=(1, 1.5))
    line, below, right = axes["formats"], axes["gradients"], axes["drift"]
    line.sharex(below)
    tidy(line)
    tidy(below)
    tidy(right, "both")
    for row, fmt in enumerate(formats):
        tiny, least, most = np.log2([fmt.smallest_subnormal, fmt.smallest_normal, fmt.max])
        line.barh(row, least - tiny, left=tiny, color=GREY, height=0.6)
        line.barh(row, most - least, left=least, color=BLUE, height=0.6)
    line.set_yticks(range(len(formats)), [fmt.name for fmt in formats])
    line.invert_yaxis()
    line.set_title("what formats hold (grey: with fewer digits)", fontsize=9, loc="left")
    line.tick_params(labelbottom=False)
    for (name, values), color in zip(gradients.items(), (VERMILION, BLUE, GREEN, ORANGE)):
        powers = np.log2(np.abs(values[values != 0]))
        below.hist(powers, bins=range(*POWERS),
                   weights=np.full(powers.size, 100 / values.size), histtype="stepfilled",
                   alpha=0.55, color=color, label=name)
    zero = np.log2(formats[0].smallest_subnormal / 2)
    below.axvline(zero, color=DARK, linestyle="--", linewidth=1)
    below.annotate(f"0 in {formats[0].name}", (zero - 0.5, 0.98),
                   xycoords=("data", "axes fraction"), va="top", ha="right", fontsize=8.5,
                   color=DARK)
    below.margins(y=0.15)
    below.set(xlim=POWERS, xlabel="size, as a power of two", ylabel="% of all gradients")
    below.legend(fontsize=8.5, frameon=False)
    for (name, values), color in zip(drift.items(), (BLUE, VERMILION, GREEN, ORANGE)):
        right.plot(values, color=color, label=name, linewidth=1.6)
    right.set_title("a weight of 1, and many small updates", fontsize=9, loc="left")
    right.set(xlabel="update", ylabel="the weight")
    right.legend(fontsize=8.5, framealpha=1, edgecolor="none")
    return save(figure, path)


def draw_quantization_grids(path: str | Path, panels: Sequence[GridPanel],
                            title: str = "") -> Path:
    """Draw a histogram over each grid, one below the other, on a common axis; return the path.

    Raises ValueError if there is nothing to draw.
    """
    if not panels or any(panel.numbers.size == 0 for panel in panels):
        raise ValueError("no numbers to draw: give at least one panel, each with some")
    figure, rows = new_panels(9.5, 1.2 + 1.7 * len(panels), title, len(panels), sharex=True)
    reach = 1.04 * max(np.abs(panel.numbers).max() for panel in panels)
    for axes, panel in zip(rows.flat, panels):
        numbers = panel.numbers.ravel()
        axes.hist(numbers, bins=np.linspace(-reach, reach, 2 * BINS + 1), color=BLUE,
                  label="weights")
        top = axes.get_ylim()[1]
        axes.vlines(panel.values, 0, top, color=ORANGE, linewidth=0.9, label="what can be kept")
        used = len(np.unique(np.abs(numbers[:, None] - panel.values).argmin(axis=1)))
        axes.set_title(f"{panel.name}: {len(panel.values)} values, {used} of them used, "
                       f"step {np.diff(panel.values).mean():.3g}", loc="left", fontsize=9.5,
                       color=DARK)
        axes.set(ylim=(0, top), ylabel="how many", xlim=(-reach, reach))
    axes.set_xlabel("value of a weight")
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, ncols=2,
                  loc="outside upper right", fontsize=9)
    return save(figure, path)


def draw_soft_targets(path: str | Path, image: np.ndarray, bars: Mapping[str, Sequence[float]],
                      truth: int, title: str = "") -> Path:
    """Draw `image` (height, width), and beside it a chart for each of `bars`; return the path.

    `bars` are probabilities of classes 0, 1, …; the bar of class `truth` is coloured.  Raises
    ValueError unless all have the same number of classes, with `truth` among them.
    """
    sizes = {len(values) for values in bars.values()}
    if len(sizes) != 1 or not 0 <= truth < min(sizes):
        raise ValueError(f"bars of one number of classes were expected, and truth {truth} one of "
                         f"them, not {sorted(sizes)} classes")
    figure = empty_figure(2.0 + 2.5 * len(bars), 3.1, title)
    shown, *rest = figure.subplots(1, 1 + len(bars), width_ratios=[0.8, *[1.0] * len(bars)])
    shown.imshow(image, cmap="gray_r")
    shown.set_title("input", fontsize=10)
    shown.set(xticks=[], yticks=[])
    for axes, (name, values) in zip(rest, bars.items()):
        drawn = axes.bar(range(len(values)), values, color=BLUE)
        drawn[truth].set(color=ORANGE, label="the true class")
        axes.bar_label(drawn, [f"{value:.0%}" if value >= TELL else "" for value in values],
                       fontsize=7, color=DARK, padding=1)
        axes.set_title(name, fontsize=10)
        axes.set(ylim=(0, 1.08), xticks=range(len(values)))
        axes.tick_params(labelsize=8, labelleft=axes is rest[0])
        axes.set_xlabel("class", fontsize=9)
        tidy(axes, "y")
    rest[0].set_ylabel("probability", fontsize=9)
    rest[0].legend(handles=[rest[0].patches[truth]], frameon=False, fontsize=8,
                   loc="upper right" if truth < len(values) / 2 else "upper left")
    return save(figure, path)


class Gap(Protocol):
    """A difference that compare_runs/ finds: its key (step, phase, name), its ratio to rounding."""

    key: tuple[int, str, str]
    ratio: float


class Difference(Protocol):
    """What a comparison found: its verdict, and the gaps in float64 or in a lower precision."""

    verdict: str
    gaps: Sequence[Gap]
    low_gaps: Sequence[Gap]


def grid_of(gaps: Sequence[Gap]) -> tuple[list[str], np.ndarray]:
    """The names of the rows, in program order, and the largest ratio in each row and column.

    A parameter is in the row of its module, if that has one.
    """
    modules = {gap.key[2] for gap in gaps if gap.key[1] == "forward"}

    def row_of(gap: Gap) -> str:
        name = gap.key[2].rpartition(" of ")[2]         # of a state: the parameter
        module = name.rpartition(".")[0]
        return module if module in modules and gap.key[1] not in ("forward", "backward") else name

    gaps = sorted(gaps, key=lambda gap: gap.key[1] == "initial")
    names = list(dict.fromkeys(map(row_of, gaps)))
    ratios = np.full((len(names), len(COLUMNS)), np.nan)
    for gap in gaps:
        column = next(i for i, phases in enumerate(COLUMNS.values()) if gap.key[1] in phases)
        place = names.index(row_of(gap)), column
        ratios[place] = np.fmax(ratios[place], gap.ratio)
    return names, ratios


def draw_difference(path: str | Path, found: Difference) -> Path:
    """Draw the step of the first difference, or without one the last step; return the path."""
    gaps = found.gaps if any(not gap.ratio <= 1 for gap in found.gaps) or not found.low_gaps \
        else found.low_gaps
    step = next((gap.key[0] for gap in gaps if not gap.ratio <= 1), max(
        (gap.key[0] for gap in gaps), default=0))
    names, ratios = grid_of([gap for gap in gaps if gap.key[0] == step])
    columns = -(-len(names) // MOST_ROWS) or 1
    rows = -(-len(names) // columns)
    title = fill(str(found), 46 * columns)
    figure, [panels] = new_panels(5.2 * columns, 1.6 + 0.155 * rows + 0.2 * title.count("\n"),
                                  title, columns=columns)
    starts = list(LEVELS)
    colors = ListedColormap([color for color, _ in LEVELS.values()]).with_extremes(bad=NOTHING)
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
