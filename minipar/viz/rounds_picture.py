"""A film of a collective as one picture: columns are rounds, rows are ranks, cells are chunks.

              before      round 1     round 2         A cell holds a stripe for each contribution
    rank 0    [a| | ] ─╮  [a| |c]     [a|b|c]         that it has: one where chunks are only passed
    rank 1    [ |b| ]  ╰▶ [a|b| ]     [a|b|c]         on, up to p where they are summed.
    rank 2    [ | |c]     [ |b|c]     [a|b|c]

What is drawn is what was sent: the film is recorded from a run (`rounds.py`).
"""

from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from ..units import in_bytes
from .colors import BLACK, DARK, GREY, PALETTE
from .figure import save
from .rounds import Held, Move, Rounds

PEOPLE = {"bruck": "Bruck's", "rabenseifner": "Rabenseifner's"}
COLORS = (*PALETTE, DARK)
# Inches: the side of a cell, between two columns; margins; the whole picture.
CELL, GAP = 0.24, 0.62
LEFT, TOP, BELOW = 0.75, 0.72, 0.42
NARROWEST, WIDEST = 6.4, 11.0


def title_of(film: Rounds) -> str:
    """As a person writes it: "all-gather, recursive doubling"."""
    algorithm = PEOPLE.get(film.algorithm, film.algorithm.replace("_", " "))
    return f"{film.operation.replace('_', '-')}, {algorithm}"


def is_summed(film: Rounds) -> bool:
    """Whether a chunk is the sum of several contributions."""
    return any(len(ranks) > 1 for ranks in film.whole.values())


def color_of(film: Rounds, chunk: int, rank: int) -> int:
    """The colour of a contribution: its rank's; where chunks are only passed on, its chunk's."""
    return (rank if is_summed(film) or film.grid[0] > 1 else chunk) % len(COLORS)


def name_of(film: Rounds, chunk: int) -> str:
    """a, b, c, …, beyond z numbers; of an all-to-all, with what rank 2 gives: 2a, 2b, 2c, …"""
    row, column = divmod(chunk, film.grid[1])
    letter = chr(ord("a") + column) if film.grid[1] <= 26 else str(column)
    return f"{row}{letter}" if film.grid[0] > 1 else letter


class Layout(NamedTuple):
    """Where things are in the picture of one film, in inches: y of its first row, widths."""

    top: float
    cell: float
    gap: float

    def column(self, film: Rounds, k: int) -> float:
        """The left edge of the cells after k rounds."""
        return LEFT + k * (film.grid[1] * self.cell + self.gap)


def draw_rounds(path: str | Path, *films: Rounds) -> Path:
    """Draw the films one below the other; return the path written."""
    tops = [0.0, *accumulate(height(film) for film in films)]
    natural = max(Layout(0, CELL, GAP).column(film, len(film.held)) for film in films)
    figure = Figure(figsize=(min(max(natural, NARROWEST), WIDEST), tops[-1]), dpi=130)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, figure.get_figwidth())
    axes.set_ylim(tops[-1], 0)
    axes.axis("off")
    for film, top in zip(films, tops):
        draw_film(axes, film, top)
    return save(figure, path)


def height(film: Rounds) -> float:
    """Inches that a film takes."""
    return TOP + film.num_ranks * pitch(film) + BELOW


def pitch(film: Rounds) -> float:
    """Inches from a rank's row to the next."""
    return film.grid[0] * CELL + 0.16


def draw_film(axes: Axes, film: Rounds, top: float) -> None:
    """One film, its upper edge `top` inches below that of the picture."""
    rounds, columns = len(film.moves), film.grid[1]
    axes.text(0.12, top + 0.16, title_of(film), fontsize=11, va="center", fontweight="bold")
    words = [f"{rounds} round{'s' * (rounds != 1)}, "
             f"{in_bytes(film.path[-1])} on the critical path; {film.num_ranks} ranks"]
    words += [f"chunks of {in_bytes(film.chunk_bytes)}"] * (columns > 0)
    words += ["row: from, column: to"] * (film.grid[0] > 1)
    axes.text(0.12, top + 0.36, "; ".join(words), fontsize=8.5, color=DARK, va="center")
    narrower = min(1, (WIDEST - LEFT) / (len(film.held) * (columns * CELL + GAP)))
    layout = Layout(top + TOP, CELL * narrower, GAP * narrower)
    span = columns * layout.cell
    for rank in range(film.num_ranks):
        axes.text(LEFT - 0.1, layout.top + rank * pitch(film) + film.grid[0] * CELL / 2,
                  f"rank {rank}", fontsize=8.5, ha="right", va="center")
    for k, held in enumerate(film.held):
        left, last = layout.column(film, k), k == rounds
        axes.text(left + span / 2, layout.top - 0.07, f"round {k}" if k else "before", fontsize=8,
                  color=DARK, ha="center", va="bottom")
        came = film.moves[k - 1] if k else []
        for rank, mine in enumerate(held):
            new = {chunk for move in came if move.dest == rank for chunk in move.chunks}
            faded = set(mine) - set(film.results[rank]) if last else set()
            draw_rank(axes, film, layout, (left, rank), mine, new, faded)
        for move in came:
            draw_move(axes, film, layout, move, left)
    explain(axes, film, layout.top + film.num_ranks * pitch(film))


def draw_rank(axes: Axes, film: Rounds, layout: Layout, place: tuple[float, int], held: Held,
              new: set[int], faded: set[int]) -> None:
    """What a rank holds: `new` cells are framed, `faded` ones are not part of its result."""
    rows, columns = film.grid
    width, (left, rank) = layout.cell, place
    for chunk in range(rows * columns):
        x = left + chunk % columns * width
        y = layout.top + rank * pitch(film) + chunk // columns * CELL
        axes.add_patch(Rectangle((x, y), width, CELL, facecolor="white", edgecolor=GREY,
                                 linewidth=0.6))
        whole = sorted(film.whole[chunk])
        for source in held.get(chunk, ()):
            stripe = CELL / len(whole)
            axes.add_patch(Rectangle(
                (x, y + whole.index(source) * stripe), width, stripe, linewidth=0,
                facecolor=COLORS[color_of(film, chunk, source)],
                alpha=0.22 if chunk in faded else 1))
        if chunk in new:
            axes.add_patch(Rectangle((x, y), width, CELL, fill=False, edgecolor=BLACK,
                                     linewidth=1.3, zorder=3))


def draw_move(axes: Axes, film: Rounds, layout: Layout, move: Move, left: float) -> None:
    """An arrow to the receiver after the round, at `left`, from the sender before it."""
    chunks = list(move.chunks)
    color = DARK
    if len(chunks) == 1 and len(film.whole[chunks[0]]) == 1:
        color = COLORS[color_of(film, chunks[0], move.source)]
    middle = layout.top + film.grid[0] * CELL / 2
    axes.add_patch(FancyArrowPatch(
        (left - layout.gap + 0.02, middle + move.source * pitch(film)),
        (left - 0.02, middle + move.dest * pitch(film)), arrowstyle="-|>", mutation_scale=8,
        shrinkA=1, shrinkB=1, linewidth=1.2, color=color, zorder=4))


def explain(axes: Axes, film: Rounds, top: float) -> None:
    """The legend, below a film."""
    summed = is_summed(film)
    by_rank = summed or film.grid[0] > 1
    count = min(film.num_ranks if by_rank else film.grid[1], len(COLORS))
    words = "a stripe: the part of rank" if summed else "from rank" if by_rank else "chunk"
    handles = [Patch(color=COLORS[i], label=f"{words if i == 0 else ''} "
                     f"{i if by_rank else name_of(film, i)}") for i in range(count)]
    if handles:
        handles.append(Patch(facecolor="white", edgecolor=BLACK, linewidth=1.3,
                             label="just arrived"))
        axes.add_artist(axes.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(LEFT, top), ncols=len(handles),
            bbox_transform=axes.transData, fontsize=8, frameon=False, borderpad=0,
            borderaxespad=0, handlelength=1, columnspacing=1))
