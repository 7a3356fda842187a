"""The messages of each round as a grid: row = sender, column = receiver, number = pieces sent.

    round 1      round 2      round 3       Each rank sends once and receives once, so each grid is
    · 1 · ·      · · 1 ·      · · · 1       a permutation; in a pairwise exchange together they are
    · · 1 ·      · · · 1      1 · · ·       all pairs, each once.
    · · · 1      1 · · ·      · 1 · ·
    1 · · ·      · 1 · ·      · · 1 ·

Two numbers in a row, or in a column, would be two messages at a time through one port.
"""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from ..units import in_bytes
from .colors import BLUE, DARK, GREY
from .figure import figure_in_inches, save
from .rounds import Move, Rounds
from .rounds_picture import title_of

SIDE, APART = 1.15, 0.22                # inches: of a grid, between two
LEFT, TOP, BELOW = 0.45, 0.55, 0.35
NARROWEST = 6.0


def draw_permutations(path: str | Path, *runs: Rounds) -> Path:
    """One row of grids for each run, one grid for each round; return the path written."""
    most = max(len(run.moves) for run in runs)
    size = max(LEFT + most * (SIDE + APART), NARROWEST), len(runs) * (TOP + SIDE + BELOW) + 0.3
    figure, axes = figure_in_inches(*size)
    for i, run in enumerate(runs):
        top = i * (TOP + SIDE + BELOW)
        axes.text(0.1, top + 0.18, f"{title_of(run)}: {len(run.moves)} rounds, "
                  f"{in_bytes(run.path[-1])} on the critical path", fontsize=10.5, va="center",
                  fontweight="bold")
        for k, moves in enumerate(run.moves):
            left = LEFT + k * (SIDE + APART)
            axes.text(left + SIDE / 2, top + TOP - 0.05, f"round {k + 1}", fontsize=8.5,
                      color=DARK, ha="center", va="bottom")
            draw_grid(axes, moves, run.num_ranks, left, top + TOP, first=k == 0)
    axes.text(0.1, size[1] - 0.16, "rows: from rank;  columns: to rank;  a number: how many pieces "
              "are in the message", fontsize=8.5, va="center")
    return save(figure, path)


def pieces(moves: list[Move], num_ranks: int) -> np.ndarray:
    """The number of pieces from each rank (row) to each rank (column); -1 without a message."""
    table = np.full((num_ranks, num_ranks), -1)
    for move in moves:
        table[move.source, move.dest] = len(move.chunks)
    return table


def draw_grid(axes: Axes, moves: list[Move], num_ranks: int, left: float, top: float,
              first: bool) -> None:
    """One round; the first grid of a row has its ranks written at the left as well."""
    cell, table = SIDE / num_ranks, pieces(moves, num_ranks)
    for source, dest in np.argwhere(table >= 0):
        x, y = left + dest * cell, top + source * cell
        axes.add_patch(Rectangle((x, y), cell, cell, facecolor=BLUE, linewidth=0))
        if table[source, dest]:
            axes.text(x + cell / 2, y + cell / 2, str(table[source, dest]), fontsize=7,
                      color="white", ha="center", va="center")
    edges = np.arange(num_ranks + 1) * cell
    axes.hlines(top + edges, left, left + SIDE, color=GREY, linewidth=0.5)
    axes.vlines(left + edges, top, top + SIDE, color=GREY, linewidth=0.5)
    for rank in range(num_ranks):
        middle = (rank + 0.5) * cell
        axes.text(left + middle, top + SIDE + 0.09, str(rank), fontsize=6.5, ha="center",
                  va="center")
        if first:
            axes.text(left - 0.08, top + middle, str(rank), fontsize=6.5, ha="center", va="center")
