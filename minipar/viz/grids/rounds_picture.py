"""The rounds of a collective as a picture: columns are rounds, rows are ranks, cells are chunks.

              before      round 1     round 2         A cell holds a stripe for each contribution
    rank 0    [a| | ] ─╮  [a| |c]     [a|b|c]         that it has: one where chunks are only passed
    rank 1    [ |b| ]  ╰▶ [a|b| ]     [a|b|c]         on, up to p where they are summed.
    rank 2    [ | |c]     [ |b|c]     [a|b|c]

    round 1      round 2      round 3       draw_permutations: row = sender, column = receiver,
    · 1 · ·      · · 1 ·      · · · 1       number = pieces sent.  In a pairwise exchange each rank
    · · 1 ·      · · · 1      1 · · ·       sends once and receives once in a round, so each grid is
    · · · 1      1 · · ·      · 1 · ·       a permutation; the grids together are all pairs, once.
    1 · · ·      · 1 · ·      · · 1 ·

Both pictures show messages that `rounds.py` has recorded from a run.
"""

from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from ...comm.algorithms import ALGORITHMS
from ...units import in_bytes
from ..colors import BLACK, BLUE, DARK, GREY, PALETTE
from ..figure import arrow, box, empty_figure, figure_in_inches, save
from .rounds import Held, Move, Rounds

COLORS = (*PALETTE, DARK)
# Inches: the side of a cell, between two columns; margins; the whole picture.
CELL, GAP = 0.24, 0.62
LEFT, TOP, BELOW = 0.75, 0.72, 0.42
NARROWEST, WIDEST = 6.4, 11.0


def title_of(run: Rounds) -> str:
    """The title of a run, such as "all-gather, recursive doubling"."""
    person = ALGORITHMS[run.operation][run.algorithm].person
    algorithm = f"{person}'s" if person else run.algorithm.replace("_", " ")
    return f"{run.operation.replace('_', '-')}, {algorithm}"


def is_summed(run: Rounds) -> bool:
    """True if a chunk is the sum of several contributions."""
    return any(len(ranks) > 1 for ranks in run.whole.values())


def color_of(run: Rounds, chunk: int, rank: int) -> int:
    """The number of a contribution's colour: by its rank, or by its chunk if nothing is summed."""
    return (rank if is_summed(run) or run.grid[0] > 1 else chunk) % len(COLORS)


def name_of(run: Rounds, chunk: int) -> str:
    """The name of a chunk: a, b, c, … or a number; in an all-to-all, rank 2 gives 2a, 2b, …."""
    row, column = divmod(chunk, run.grid[1])
    letter = chr(ord("a") + column) if run.grid[1] <= 26 else str(column)
    return f"{row}{letter}" if run.grid[0] > 1 else letter


class Geometry(NamedTuple):
    """Places in the picture of one run, in inches: y of its first row, widths."""

    top: float
    cell: float
    gap: float

    def column(self, run: Rounds, k: int) -> float:
        """The left edge of the cells after k rounds."""
        return LEFT + k * (run.grid[1] * self.cell + self.gap)


def draw_rounds(path: str | Path, *runs: Rounds) -> Path:
    """Draw the runs one below the other; return the path written."""
    tops = [0.0, *accumulate(height(run) for run in runs)]
    natural = max(Geometry(0, CELL, GAP).column(run, len(run.held)) for run in runs)
    figure, axes = figure_in_inches(min(max(natural, NARROWEST), WIDEST), tops[-1])
    for run, top in zip(runs, tops):
        draw_run(axes, run, top)
    return save(figure, path)


def height(run: Rounds) -> float:
    """Inches that a run takes."""
    return TOP + run.num_ranks * pitch(run) + BELOW


def pitch(run: Rounds) -> float:
    """Inches from a rank's row to the next."""
    return run.grid[0] * CELL + 0.16


def draw_run(axes: Axes, run: Rounds, top: float) -> None:
    """Draw one run, its upper edge `top` inches below the picture's."""
    rounds, columns = len(run.moves), run.grid[1]
    axes.text(0.12, top + 0.16, title_of(run), fontsize=11, va="center", fontweight="bold")
    words = [f"{rounds} round{'s' * (rounds != 1)}, "
             f"{in_bytes(run.path[-1])} on the critical path; {run.num_ranks} ranks"]
    words += [f"chunks of {in_bytes(run.chunk_bytes)}"] * (columns > 0)
    words += ["row: from, column: to"] * (run.grid[0] > 1)
    axes.text(0.12, top + 0.36, "; ".join(words), fontsize=8.5, color=DARK, va="center")
    narrower = min(1, (WIDEST - LEFT) / (len(run.held) * (columns * CELL + GAP)))
    geometry = Geometry(top + TOP, CELL * narrower, GAP * narrower)
    span = columns * geometry.cell
    for rank in range(run.num_ranks):
        axes.text(LEFT - 0.1, geometry.top + rank * pitch(run) + run.grid[0] * CELL / 2,
                  f"rank {rank}", fontsize=8.5, ha="right", va="center")
    for k, held in enumerate(run.held):
        left, last = geometry.column(run, k), k == rounds
        axes.text(left + span / 2, geometry.top - 0.07, f"round {k}" if k else "before", fontsize=8,
                  color=DARK, ha="center", va="bottom")
        came = run.moves[k - 1] if k else []
        for rank, mine in enumerate(held):
            new = {chunk for move in came if move.dest == rank for chunk in move.chunks}
            faded = set(mine) - set(run.results[rank]) if last else set()
            draw_rank(axes, run, geometry, (left, rank), mine, new, faded)
        for move in came:
            draw_move(axes, run, geometry, move, left)
    explain(axes, run, geometry.top + run.num_ranks * pitch(run))


def draw_rank(axes: Axes, run: Rounds, geometry: Geometry, place: tuple[float, int], held: Held,
              new: set[int], faded: set[int]) -> None:
    """Draw the chunks of a rank: `new` cells framed, cells outside of its result `faded`."""
    rows, columns = run.grid
    width, (left, rank) = geometry.cell, place
    for chunk in range(rows * columns):
        x = left + chunk % columns * width
        y = geometry.top + rank * pitch(run) + chunk // columns * CELL
        box(axes, x, y, width, CELL, facecolor="white", edgecolor=GREY, linewidth=0.6)
        whole = sorted(run.whole[chunk])
        for source in held.get(chunk, ()):
            stripe = CELL / len(whole)
            box(axes, x, y + whole.index(source) * stripe, width, stripe, linewidth=0,
                facecolor=COLORS[color_of(run, chunk, source)], alpha=0.22 if chunk in faded else 1)
        if chunk in new:
            box(axes, x, y, width, CELL, fill=False, edgecolor=BLACK, linewidth=1.3, zorder=3)


def draw_move(axes: Axes, run: Rounds, geometry: Geometry, move: Move, left: float) -> None:
    """Draw an arrow from the sender before the round to the receiver after it, at `left`."""
    chunks = list(move.chunks)
    color = DARK
    if len(chunks) == 1 and len(run.whole[chunks[0]]) == 1:
        color = COLORS[color_of(run, chunks[0], move.source)]
    middle = geometry.top + run.grid[0] * CELL / 2
    arrow(axes, (left - geometry.gap + 0.02, middle + move.source * pitch(run)),
          (left - 0.02, middle + move.dest * pitch(run)), mutation_scale=8, shrinkA=1, shrinkB=1,
          color=color)


def explain(axes: Axes, run: Rounds, top: float) -> None:
    """Draw the legend, below a run."""
    summed = is_summed(run)
    by_rank = summed or run.grid[0] > 1
    count = min(run.num_ranks if by_rank else run.grid[1], len(COLORS))
    words = "a stripe: the part of rank" if summed else "from rank" if by_rank else "chunk"
    handles = [Patch(color=COLORS[i], label=f"{words if i == 0 else ''} "
                     f"{i if by_rank else name_of(run, i)}") for i in range(count)]
    if handles:
        handles.append(Patch(facecolor="white", edgecolor=BLACK, linewidth=1.3,
                             label="just arrived"))
        axes.add_artist(axes.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(LEFT, top), ncols=len(handles),
            bbox_transform=axes.transData, fontsize=8, frameon=False, borderpad=0,
            borderaxespad=0, handlelength=1, columnspacing=1))


def draw_permutations(path: str | Path, *runs: Rounds) -> Path:
    """Draw a row of grids for each run, a grid for each round; return the path written."""
    most = max(1, *(len(run.moves) for run in runs))
    figure = empty_figure(max(0.5 + 1.4 * most, 6.0), 0.4 + 2.1 * len(runs))
    figure.supxlabel("rows: from rank;  columns: to rank;  a number: how many pieces are in the "
                     "message", fontsize=8.5)
    for part, run in zip(figure.subfigures(len(runs), squeeze=False)[:, 0], runs):
        part.suptitle(f"{title_of(run)}: {len(run.moves)} rounds, {in_bytes(run.path[-1])} on the "
                      "critical path", fontsize=10.5, fontweight="bold", x=0.01, ha="left")
        grid = part.subplots(1, most, squeeze=False)[0]
        for k, (axes, moves) in enumerate(zip(grid, run.moves)):
            draw_grid(axes, pieces(moves, run.num_ranks))
            axes.set_title(f"round {k + 1}", fontsize=8.5, color=DARK)
            axes.tick_params(labelleft=k == 0)
        for axes in grid[len(run.moves):]:
            axes.set_visible(False)
    return save(figure, path)


def pieces(moves: list[Move], num_ranks: int) -> np.ndarray:
    """The number of pieces from each rank (row) to each rank (column); -1 without a message."""
    table = np.full((num_ranks, num_ranks), -1)
    for move in moves:
        table[move.source, move.dest] = len(move.chunks)
    return table


def draw_grid(axes: Axes, table: np.ndarray) -> None:
    """Draw the grid of one round."""
    axes.imshow(table >= 0, cmap=ListedColormap(["white", BLUE]), vmin=0, vmax=1)
    for source, dest in np.argwhere(table > 0):
        axes.text(dest, source, str(table[source, dest]), fontsize=7, color="white", ha="center",
                  va="center")
    ranks, edges = range(len(table)), np.arange(len(table) + 1) - 0.5
    axes.set(xticks=ranks, yticks=ranks)
    axes.set_xticks(edges, minor=True)
    axes.set_yticks(edges, minor=True)
    axes.grid(which="minor", color=GREY, linewidth=0.5)
    axes.tick_params(which="both", length=0, labelsize=6.5)
    axes.spines[:].set(color=GREY, linewidth=0.5)
