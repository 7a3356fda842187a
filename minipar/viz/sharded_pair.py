"""A pair of layers cut over ranks, as matrices: who has which columns of A and rows of B.

            A        y        B
    ┌─▶ x   █░  ─▶   █░   ·   █  =  share ─┐
    x       ░█       ░█       ░            Σ ─▶ z
    └─▶ x       ─▶        ·      =  share ─┘
     f                                    g

f and g are the only messages; between them each rank works by itself.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from .colors import BLACK, DARK, GREY, PALETTE
from .figure import new_figure, save

ROWS, WIDTH, HIDDEN = 1.0, 0.75, 1.5        # how long the axes b·t, d and 4d are drawn
SHOWN = 4
PLACES = {"x": 0.0, "A": 2.0, "y": 4.1, "B": 6.1, "share": 7.6, "z": 10.0}      # left edges


def draw_sharded_pair(path: str | Path, columns: Sequence[tuple[int, int]], total: int,
              title: str = "") -> Path:
    """Draw z = gelu(x A) B on ranks that hold the `columns` (start, stop) of `total` of A.

    The first four ranks are drawn; returns the path written.  Raises ValueError if the columns are
    not pieces of `total`, one after the other.
    """
    ends = [0, *(stop for _, stop in columns)]
    if [start for start, _ in columns] != ends[:-1] or ends[-1] != total:
        raise ValueError(f"{list(columns)} are not {total} columns, cut into pieces one after the "
                         "other")
    shown = list(columns[:SHOWN])
    figure, axes = new_figure(11, 1.3 + 1.45 * len(shown), title)
    middle = (len(shown) - 1) * 2 / 2
    for rank, (start, stop) in enumerate(shown):
        _draw_rank(axes, rank, 2 * rank, (start / total, stop / total), middle)
    _matrix(axes, PLACES["x"], middle, WIDTH, ROWS, "x", DARK)
    _matrix(axes, PLACES["z"], middle, WIDTH, ROWS, "z = Σ shares", DARK)
    top = -1.5
    for where, text in ((PLACES["x"] + WIDTH + 0.45, "f\nforward: copy\nbackward: Σ dx"),
                        (PLACES["share"] + WIDTH + 0.85, "g\nforward: Σ\nbackward: copy")):
        axes.text(where, top, text, ha="center", va="center", fontsize=9, color=BLACK,
                  fontweight="bold")
    axes.text(PLACES["y"] + HIDDEN / 2, top, "no message here", ha="center", va="center",
              fontsize=9, color=DARK)
    more = f" (the first {SHOWN} of {len(columns)} ranks)" if len(columns) > SHOWN else ""
    axes.text(0, 2 * len(shown) - 0.75, "coloured: what the rank holds; outlined: the whole; each "
              f"Σ is an all-reduce of b·t × d numbers{more}", fontsize=8.5, color=DARK, va="top")
    axes.set_xlim(-0.2, PLACES["z"] + 1.4)
    axes.set_ylim(2 * len(shown) - 0.45, -2.0)
    axes.set_aspect("equal")
    axes.set_axis_off()
    return save(figure, path)


def _draw_rank(axes: Axes, rank: int, y: float, mine: tuple[float, float], middle: float) -> None:
    """One rank's row of matrices, around height y; `mine` is its part of the hidden axis."""
    color, (start, stop) = PALETTE[rank % len(PALETTE)], mine
    cut = {"left": start * HIDDEN, "size": (stop - start) * HIDDEN}
    axes.text(PLACES["A"] - 0.2, y - 0.82, f"rank {rank}", fontsize=9, color=color,
              fontweight="bold", ha="left")
    _matrix(axes, PLACES["A"], y, HIDDEN, WIDTH, "A")
    _part(axes, PLACES["A"] + cut["left"], y - WIDTH / 2, cut["size"], WIDTH, color,
          f"A{_sub(rank)}")
    axes.text(PLACES["A"] + HIDDEN + 0.3, y - 0.06, "gelu", fontsize=8.5, ha="center", va="bottom")
    _arrow(axes, (PLACES["A"] + HIDDEN + 0.08, y), (PLACES["y"] - 0.08, y))
    _matrix(axes, PLACES["y"], y, HIDDEN, ROWS, "y")
    _part(axes, PLACES["y"] + cut["left"], y - ROWS / 2, cut["size"], ROWS, color, f"y{_sub(rank)}")
    axes.text((PLACES["y"] + HIDDEN + PLACES["B"]) / 2, y, "×", ha="center", va="center")
    _matrix(axes, PLACES["B"], y, WIDTH, HIDDEN, "B")
    _part(axes, PLACES["B"], y - HIDDEN / 2 + cut["left"], WIDTH, cut["size"], color,
          f"B{_sub(rank)}")
    axes.text((PLACES["B"] + WIDTH + PLACES["share"]) / 2, y, "=", ha="center", va="center")
    _part(axes, PLACES["share"], y - ROWS / 2, WIDTH, ROWS, color, "share", hatch="///")
    _arrow(axes, (PLACES["x"] + WIDTH + 0.08, middle), (PLACES["A"] - 0.08, y))
    _arrow(axes, (PLACES["share"] + WIDTH + 0.08, y), (PLACES["z"] - 0.08, middle))


def _matrix(axes: Axes, x: float, y: float, width: float, height: float, name: str = "",
            color: str = "none") -> None:
    """An outline around height y, named below."""
    axes.add_patch(Rectangle((x, y - height / 2), width, height, edgecolor=GREY, linewidth=1,
                             facecolor=color, zorder=2))
    axes.text(x + width / 2, y + height / 2 + 0.12, name, ha="center", va="top", fontsize=9)


def _part(axes: Axes, x: float, y: float, width: float, height: float, color: str, name: str,
          hatch: str = "") -> None:
    axes.add_patch(Rectangle((x, y), width, height, facecolor="white" if hatch else color,
                             edgecolor=color, hatch=hatch, linewidth=1, zorder=3, gid=name))
    name = name if min(width, height) > 0.25 else ""       # where there is room
    axes.text(x + width / 2, y + height / 2, name, ha="center", va="center", fontsize=8.5, zorder=4,
              color=BLACK if hatch else "white",
              bbox={"facecolor": "white", "edgecolor": "none", "pad": 1} if hatch else None)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": DARK, "linewidth": 1})


def _sub(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
