"""Who sends to whom in each round: rows are senders, columns receivers, a number the pieces sent.

    round 1      round 2      round 3       Each rank sends once and receives once, so each grid is
    · 1 · ·      · · 1 ·      · · · 1       a permutation; in a pairwise exchange together they are
    · · 1 ·      · · · 1      1 · · ·       all pairs, each once.
    · · · 1      1 · · ·      · 1 · ·
    1 · · ·      · 1 · ·      · · 1 ·
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from .colors import BLACK, BLUE, DARK, LIGHT
from .figure import in_bytes, save
from .rounds import Move, Rounds
from .rounds_picture import title_of

GRID = 1.35         # inches from one grid to the next


def draw_permutations(path: str | Path, *films: Rounds) -> Path:
    """One row of grids for each film, one grid for each round; return the path written."""
    most = max(len(film.moves) for film in films)
    figure = Figure(figsize=(0.5 + GRID * most, (GRID + 0.6) * len(films) + 0.3), dpi=130,
                    layout="constrained")
    figure.supxlabel("rows: from rank;  columns: to rank;  a number: the pieces in the message",
                     fontsize=8.5, x=0.01, ha="left")
    for part, film in zip(np.atleast_1d(figure.subfigures(len(films))), films):
        heading = (f"{title_of(film)}: {len(film.moves)} rounds, "
                   f"{in_bytes(film.path[-1])} on the critical path")
        part.suptitle(heading, x=0.01, ha="left", fontsize=10.5, fontweight="bold")
        row = part.subplots(1, most, squeeze=False)[0]
        for k, axes in enumerate(row):
            if k < len(film.moves):
                draw_grid(axes, film.moves[k], film.num_ranks)
                axes.set_title(f"round {k + 1}", fontsize=8.5, color=DARK)
            else:
                axes.axis("off")
    return save(figure, path)


def pieces(moves: list[Move], num_ranks: int) -> np.ndarray:
    """How many pieces each rank (row) sends to each (column); -1 where no message goes."""
    table = np.full((num_ranks, num_ranks), -1)
    for move in moves:
        table[move.source, move.dest] = len(move.chunks)
    return table


def draw_grid(axes: Axes, moves: list[Move], num_ranks: int) -> None:
    """One round."""
    table = pieces(moves, num_ranks)
    axes.imshow(table >= 0, cmap=ListedColormap(["white", BLUE]), vmin=0, vmax=1)
    for source, dest in np.argwhere(table > 0):
        axes.text(dest, source, str(table[source, dest]), fontsize=7, color="white", ha="center",
                  va="center")
    axes.set_xticks(np.arange(num_ranks + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(num_ranks + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=LIGHT, linewidth=0.7)
    axes.set_xticks(range(num_ranks))
    axes.set_yticks(range(num_ranks))
    axes.tick_params(which="both", length=0, labelsize=6.5, labelcolor=BLACK)
    for side in axes.spines.values():
        side.set_color(LIGHT)
