"""Ring attention as a table: which block of keys each rank has in each hop, and which keys it sees.

              hop 0   hop 1   hop 2   hop 3       pairs
    rank 0    ◣ kv₀   · kv₃   · kv₂   · kv₁       ▇▏            a cell is a block of the attention
    rank 1    ◣ kv₁   ■ kv₀   · kv₃   · kv₂       ▇▇▇▇▏         matrix: rows are queries, columns
    rank 2    ◣ kv₂   ■ kv₁   ■ kv₀   · kv₃       ▇▇▇▇▇▇▇▏      keys; coloured pairs are computed

The bars are the sums of the rows: the rank with the longest bar decides how long all take.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import SubFigure

from ...parallel.context.mask import AttentionMask
from ..colors import BLACK, DARK, GREY, LIGHT, PALETTE
from ..figure import empty_figure, save, tidy

SHOWN = 4                                   # ranks that are drawn, at most


def draw_ring_attention(path: str | Path, orders: Mapping[str, Sequence[np.ndarray]],
                        title: str = "") -> Path:
    """Draw a table for each of `orders`, {name: the positions of each rank's tokens}.

    The first four ranks and hops are drawn.  Raises ValueError if the orders have different
    numbers of ranks.
    """
    sizes = {len(positions) for positions in orders.values()}
    if len(sizes) != 1:
        raise ValueError(f"the orders are of {sorted(sizes)} ranks: give the same number of each")
    (p,) = sizes
    shown = min(p, SHOWN)
    figure = empty_figure(4.6 + 0.9 * shown, 0.8 + len(orders) * (0.9 + 0.9 * shown), title)
    more = f" (the first {shown} of {p} ranks and hops)" if p > shown else ""
    figure.supxlabel("a cell: rows are the rank's queries, columns the keys of block kv; coloured "
                     f"pairs are computed{more}", fontsize=8.5, color=DARK)
    pairs = {name: visible_pairs(positions).sum(axis=1) for name, positions in orders.items()}
    longest = max(sums.max() for sums in pairs.values())
    parts = figure.subfigures(len(orders), squeeze=False)[:, 0]
    for part, (name, positions) in zip(parts, orders.items()):
        sums = pairs[name]
        part.suptitle(f"{name}: the busiest rank has {sums.max() / sums.mean():.2f} times the mean",
                      fontsize=10, fontweight="bold", x=0.01, ha="left")
        _draw_order(part, positions, shown, sums, longest)
    return save(figure, path)


def visible_pairs(positions: Sequence[np.ndarray]) -> np.ndarray:
    """The number of pairs at [r, i]: a query of rank r with a key of rank r - i that it sees."""
    p, mask = len(positions), AttentionMask()
    return np.array([[np.sum(mask.visible(positions[r], positions[(r - i) % p]))
                      for i in range(p)] for r in range(p)])


def _draw_order(part: SubFigure, positions: Sequence[np.ndarray], shown: int, sums: np.ndarray,
                longest: int) -> None:
    grid = part.add_gridspec(shown, shown + 1, width_ratios=[*[1] * shown, 3.2])
    for r in range(shown):
        for i in range(shown):
            axes, block = part.add_subplot(grid[r, i]), (r - i) % len(positions)
            _draw_cell(axes, positions[r], positions[block], block)
            if r == 0:
                axes.set_title(f"hop {i}", fontsize=8.5, color=DARK)
            if i == 0:
                axes.set_ylabel(f"rank {r}", fontsize=9, rotation=0, ha="right", va="center")
    bars = part.add_subplot(grid[:, -1])
    drawn = bars.barh(range(shown), sums[:shown], 0.5, color=PALETTE[:shown])
    bars.bar_label(drawn, [f"{each:,}" for each in sums[:shown]], fontsize=9, padding=4)
    bars.axvline(sums.mean(), color=BLACK, linewidth=1, linestyle="dotted")
    bars.annotate("mean", (sums.mean(), 1), xycoords=("data", "axes fraction"), fontsize=7.5,
                  ha="center", va="bottom")
    bars.set_title("pairs in all hops", fontsize=8.5, color=DARK, loc="left")
    bars.set(xlim=(0, 1.25 * longest), ylim=(shown - 0.5, -0.5), yticks=[])
    tidy(bars)


def _draw_cell(axes: Axes, queries: np.ndarray, keys: np.ndarray, block: int) -> None:
    seen = AttentionMask().visible(queries, keys)[0]
    if seen.size:
        axes.imshow(seen, cmap=ListedColormap([LIGHT, PALETTE[block % len(PALETTE)]]), vmin=0,
                    vmax=1, interpolation="nearest", aspect="auto")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color(GREY)
    axes.text(0.95, 0.93, f"kv{block}", transform=axes.transAxes, fontsize=8, ha="right", va="top",
              bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85})
