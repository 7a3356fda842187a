"""A pair of layers cut over ranks, as matrices: each rank has columns of A and rows of B.

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

from ..colors import BLACK, DARK, GREY, PALETTE
from ..figure import arrow, box, new_figure, save

ROWS, WIDTH, HIDDEN = 1.0, 0.75, 1.5        # how long the axes b·t, d and 4d are drawn
SHOWN = 4
SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
PLACES = {"x": 0.0, "A": 2.0, "y": 4.1, "B": 6.1, "share": 7.6, "z": 10.0}      # left edges


def draw_sharded_pair(path: str | Path, columns: Sequence[tuple[int, int]], total: int,
              title: str = "") -> Path:
    """Draw z = gelu(x A) B on ranks that hold `columns` (start, stop) of A, `total` in all.

    The first four ranks are drawn; returns the path written.  Raises ValueError if the columns are
    not pieces of `total`, one after the other.
    """
    ends = [0, *(stop for _, stop in columns)]
    if [start for start, _ in columns] != ends[:-1] or ends[-1] != total:
        raise ValueError(f"{list(columns)} are not {total} columns, cut into pieces one after the "
                         "other")
    shown = list(columns[:SHOWN])
    figure, axes = new_figure(11, 1.3 + 1.45 * len(shown), title)
    middle = len(shown) - 1
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
    axes.set(xlim=(-0.2, PLACES["z"] + 1.4), ylim=(2 * len(shown) - 0.45, -2.0), aspect="equal")
    axes.set_axis_off()
    return save(figure, path)


def _draw_rank(axes: Axes, rank: int, y: float, mine: tuple[float, float], middle: float) -> None:
    """Draw one rank's row of matrices around height y; `mine` is its part of the hidden axis."""
    color, below = PALETTE[rank % len(PALETTE)], str(rank).translate(SUBSCRIPTS)
    start, size = mine[0] * HIDDEN, (mine[1] - mine[0]) * HIDDEN
    a, hidden, b, share = (PLACES[name] for name in ("A", "y", "B", "share"))
    axes.text(a - 0.2, y - 0.82, f"rank {rank}", fontsize=9, color=color, fontweight="bold")
    for name, x, width, height in (("A", a, HIDDEN, WIDTH), ("y", hidden, HIDDEN, ROWS),
                                   ("B", b, WIDTH, HIDDEN)):
        _matrix(axes, x, y, width, height, name)
    _part(axes, a + start, y - WIDTH / 2, size, WIDTH, color, f"A{below}")
    _part(axes, hidden + start, y - ROWS / 2, size, ROWS, color, f"y{below}")
    _part(axes, b, y - HIDDEN / 2 + start, WIDTH, size, color, f"B{below}")
    box(axes, share, y - ROWS / 2, WIDTH, ROWS, facecolor="white", edgecolor=color, hatch="///")
    words = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1}, "ha": "center",
             "va": "center"}
    axes.text(share + WIDTH / 2, y, "share", fontsize=8.5, **words)
    axes.text((hidden + HIDDEN + b) / 2, y, "×", **words)
    axes.text((b + WIDTH + share) / 2, y, "=", **words)
    axes.text(a + HIDDEN + 0.3, y - 0.06, "gelu", fontsize=8.5, ha="center", va="bottom")
    for start, end in (((PLACES["x"] + WIDTH, middle), (a, y)), ((a + HIDDEN, y), (hidden, y)),
                       ((share + WIDTH, y), (PLACES["z"], middle))):
        arrow(axes, (start[0] + 0.08, start[1]), (end[0] - 0.08, end[1]), linewidth=1)


def _matrix(axes: Axes, x: float, y: float, width: float, height: float, name: str,
            color: str = "none") -> None:
    """Draw the outline of a matrix around height y, with its name below."""
    box(axes, x, y - height / 2, width, height, edgecolor=GREY, facecolor=color, zorder=2)
    axes.text(x + width / 2, y + height / 2 + 0.12, name, ha="center", va="top", fontsize=9)


def _part(axes: Axes, x: float, y: float, width: float, height: float, color: str,
          name: str) -> None:
    """Draw a coloured part of a matrix; its name is written where there is room."""
    box(axes, x, y, width, height, name if min(width, height) > 0.25 else "", "white",
        color=color, zorder=3, gid=name)
