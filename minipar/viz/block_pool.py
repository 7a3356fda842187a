"""The blocks of a paged cache over time: which request has which block, and how full it is.

    block 0 │▇▇▇▇▇▇▇▇▇▇▇          one row for each block, one column for each step; the colour is
          1 │  ▂▄▆▇▇▇▇▇▇▇          the request, the height how much of the block holds tokens;
          2 │▇▇▇ ▂▄▆▇▇             a black frame: several sequences share the block
            └─────────────▶ step

Below: the part of the slots in use that holds no token.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .colors import BLACK, DARK, INDIGO, OLIVE, PALETTE, RED, TEAL, WINE
from .figure import empty_figure, legend_below, save, tidy

COLORS = (*PALETTE, WINE, OLIVE, INDIGO, TEAL)
MOST_NAMES = 12         # in a legend


class Use(NamedTuple):
    """A block in a step: the request that has it, the part that is filled, its sequences."""

    request: str
    filled: float
    num_sequences: int


def draw_block_pool(path: str | Path, steps: Sequence[Mapping[str, Any]], num_blocks: int,
                    block_size: int, title: str = "") -> Path:
    """Draw the steps of a replay (`minipar replay`); return the path written."""
    height = min(9.0, 1.6 + 0.28 * num_blocks)
    figure = empty_figure(min(16.0, 4.5 + 0.32 * len(steps)), height + 1.6, as_plain(title))
    pool, waste = figure.subplots(2, 1, sharex=True, height_ratios=(height, 1.6))
    names = list(dict.fromkeys(entry[0] for step in steps for entry in step["scheduled"]))
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    _draw_blocks(pool, steps, block_size, colors)
    pool.set_ylim(num_blocks - 0.5, -0.5)
    pool.set_ylabel(f"block of {block_size} tokens")
    pool.yaxis.set_major_locator(MaxNLocator(integer=True))
    _draw_waste(waste, steps)
    handles: list[Any] = []
    if len(names) <= MOST_NAMES:
        handles += [Patch(facecolor=colors[name], label=as_plain(name)) for name in names]
    else:
        handles.append(Patch(facecolor="white", label=f"{len(names)} requests, a colour each "
                                                      "(colours repeat)"))
    if any(use.num_sequences > 1 for uses in uses_of_blocks(steps, block_size)
           for use in uses.values()):
        handles.append(Patch(facecolor="white", edgecolor=BLACK, linewidth=1.5, label="shared"))
    if any(step.get("preempted") for step in steps):
        handles.append(Line2D([], [], marker="v", linestyle="", color=RED, label="preempted"))
    legend_below(figure, handles, columns=8)
    return save(figure, path)


def as_plain(text: str) -> str:
    """Text that Matplotlib draws as it is: $ begins no formula."""
    return text.replace("$", r"\$")


def uses_of_blocks(steps: Sequence[Mapping[str, Any]], block_size: int) -> list[dict[int, Use]]:
    """For each step: {block: its Use}, from the tables and the tokens that were computed."""
    computed: dict[str, int] = {}           # of each request, as of its last step
    found = []
    for step in steps:
        for name, start, num_tokens, _ in step["scheduled"]:
            computed[name] = start + num_tokens
        uses: dict[int, Use] = {}
        for sequence, table in step["tables"].items():
            name = sequence if sequence in computed else sequence.rpartition(".")[0]
            for i, block in enumerate(table):
                filled = min(1.0, (computed[name] - i * block_size) / block_size)
                before = uses.get(block, Use(name, 0.0, 0))
                uses[block] = Use(before.request, max(before.filled, filled),
                                  before.num_sequences + 1)
        found.append(uses)
    return found


def _draw_blocks(axes: Axes, steps: Sequence[Mapping[str, Any]], block_size: int,
                 colors: Mapping[str, str]) -> None:
    tints, bars, frames = [], [], []
    for step, uses in zip(steps, uses_of_blocks(steps, block_size)):
        left = step["step"] - 0.5
        for block, use in uses.items():
            color = colors[use.request]
            tints.append(Rectangle((left, block - 0.42), 1, 0.84, facecolor=color, alpha=0.22))
            bars.append(Rectangle((left, block + 0.42 - 0.84 * use.filled), 1, 0.84 * use.filled,
                                  facecolor=color))
            if use.num_sequences > 1:
                frames.append(Rectangle((left + 0.04, block - 0.42), 0.92, 0.84, fill=False,
                                        edgecolor=BLACK, linewidth=1.4))
        if step.get("preempted"):
            axes.plot(step["step"], -0.5, "v", color=RED, clip_on=False, markersize=7)
    for patches in (tints, bars, frames):
        axes.add_collection(PatchCollection(patches, match_original=True))
    axes.set_xlim(steps[0]["step"] - 0.5, steps[-1]["step"] + 0.5)
    tidy(axes)


def _draw_waste(axes: Axes, steps: Sequence[Mapping[str, Any]]) -> None:
    indices = [step["step"] for step in steps]
    wasted = [1 - step["filled"] / step["slots"] if step["slots"] else 0.0 for step in steps]
    axes.bar(indices, wasted, width=0.8, color=DARK)
    axes.set_ylabel("slots without\na token")
    axes.set_xlabel("step")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(axes, grid="y")
