"""Ring attention as a table: which block of keys each rank has in each hop, and what it sees of it.

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
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from ..parallel.context.mask import AttentionMask
from .colors import BLACK, DARK, GREY, LIGHT, PALETTE
from .figure import figure_in_inches, save

SHOWN = 4                                   # ranks, of those that there are
CELL, GAP, HEAD, LEFT = 0.78, 0.12, 0.85, 0.75
BARS = 2.4                                  # inches: the longest bar


def draw_ring_attention(path: str | Path, orders: Mapping[str, Sequence[np.ndarray]],
                        title: str = "") -> Path:
    """Draw a table for each of `orders`: name to the positions of the tokens of each rank.

    The first four ranks and hops are drawn.  Raises ValueError if the orders have different
    numbers of ranks.
    """
    sizes = {len(positions) for positions in orders.values()}
    if len(sizes) != 1:
        raise ValueError(f"the orders are of {sorted(sizes)} ranks: give the same number of each")
    (p,) = sizes
    shown = min(p, SHOWN)
    width = LEFT + shown * (CELL + GAP) + 0.5 + BARS + 0.9
    height = 0.4 + len(orders) * (HEAD + shown * (CELL + GAP)) + 0.35
    figure, axes = figure_in_inches(width, height)
    axes.text(0.1, 0.22, title, fontsize=11, fontweight="bold", va="center")
    tables = {name: visible_pairs(positions) for name, positions in orders.items()}
    longest = max(int(table.sum(axis=1).max()) for table in tables.values())
    for i, (name, positions) in enumerate(orders.items()):
        _draw_order(axes, 0.4 + i * (HEAD + shown * (CELL + GAP)), name, positions, tables[name],
                    longest)
    more = f" (the first {shown} of {p} ranks and hops)" if p > shown else ""
    axes.text(0.1, height - 0.17, "a cell: rows are the rank's queries, columns the keys of block "
              f"kv; coloured pairs are computed{more}", fontsize=8.5, color=DARK, va="center")
    return save(figure, path)


def visible_pairs(positions: Sequence[np.ndarray]) -> np.ndarray:
    """Pairs [r, i] of a query of rank r and a key that it sees of rank r - i: (p, p)."""
    p, mask = len(positions), AttentionMask()
    return np.array([[np.sum(mask.visible(positions[r], positions[(r - i) % p]))
                      for i in range(p)] for r in range(p)])


def _draw_order(axes: Axes, top: float, name: str, positions: Sequence[np.ndarray],
                table: np.ndarray, longest: int) -> None:
    p, shown = len(positions), min(len(positions), SHOWN)
    sums = table.sum(axis=1)
    axes.text(0.1, top + 0.3, f"{name}: the busiest rank has {sums.max() / sums.mean():.2f} times "
              "the mean", fontsize=10, fontweight="bold", va="center")
    right = LEFT + shown * (CELL + GAP) + 0.3
    for i in range(shown):
        axes.text(LEFT + i * (CELL + GAP) + CELL / 2, top + HEAD - 0.1, f"hop {i}", fontsize=8.5,
                  color=DARK, ha="center", va="bottom")
    axes.text(right, top + HEAD - 0.1, "pairs in all hops", fontsize=8.5, color=DARK, va="bottom")
    for r in range(shown):
        y = top + HEAD + r * (CELL + GAP)
        axes.text(LEFT - 0.12, y + CELL / 2, f"rank {r}", fontsize=9, ha="right", va="center")
        for i in range(shown):
            _draw_cell(axes, LEFT + i * (CELL + GAP), y, positions[r], positions[(r - i) % p],
                       (r - i) % p)
        length = BARS * int(sums[r]) / longest
        axes.add_patch(Rectangle((right, y + CELL * 0.25), length, CELL / 2, linewidth=0,
                                 facecolor=PALETTE[r % len(PALETTE)], gid=f"{name} {r}"))
        axes.text(right + length + 0.06, y + CELL / 2, f"{int(sums[r]):,}", fontsize=9,
                  va="center")
    mean, bottom = right + BARS * float(sums.mean()) / longest, top + HEAD + shown * (CELL + GAP)
    axes.vlines(mean, top + HEAD, bottom - GAP, color=BLACK, linewidth=1, linestyles="dotted")
    axes.text(mean, top + HEAD - 0.02, "mean", fontsize=7.5, color=BLACK, ha="center", va="bottom")


def _draw_cell(axes: Axes, x: float, y: float, queries: np.ndarray, keys: np.ndarray,
               block: int) -> None:
    color = PALETTE[block % len(PALETTE)]
    seen = AttentionMask().visible(queries, keys)[0]
    if seen.size:
        pixels = np.where(seen[..., None], to_rgb(color), to_rgb(LIGHT))
        axes.imshow(pixels, extent=(x, x + CELL, y + CELL, y), interpolation="nearest", zorder=2,
                    aspect="auto")
    axes.add_patch(Rectangle((x, y), CELL, CELL, facecolor="none", edgecolor=GREY, linewidth=0.8,
                             zorder=3))
    axes.text(x + CELL - 0.05, y + 0.05, f"kv{block}", fontsize=8, ha="right", va="top", zorder=4,
              color=BLACK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8,
                                 "alpha": 0.85})
