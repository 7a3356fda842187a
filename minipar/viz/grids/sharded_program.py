"""A program that annotations have cut over a mesh: the axes that cut each value's dimensions.

                    weights        result
    c_fc   linear   [128][512]     [8][64][512]                              a box is a dimension;
    gelu                           [8][64][512]                              its colour is the mesh
    c_proj linear   [512][128]     [8][64][128]   all-reduce tp 197 kB       axis that cuts it

An arc at the left leads from a value to an operation that uses it and does not follow directly.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from ..colors import BLACK, DARK, GREY, LIGHT, PALETTE
from ..figure import arrow, box, figure_in_inches, save

STEP, BOX, TOP = 0.32, 0.46, 1.0           # inches: between rows, the width of a dimension, head
NAME, WEIGHTS, RESULT = 1.0, 3.6, 5.1       # the left ends of the columns
MOST_ROWS = 60


def draw_sharded_program(path: str | Path, blocks: Sequence[tuple[Sequence[Any], Sequence[str]]],
                         mesh: Mapping[str, int], title: str = "") -> Path:
    """Draw the rows of a local program; return the path written.

    `blocks` are (rows, names), as `gspmd.describe.folded` finds them: rows of the program, and the
    names of all blocks of the model that have these rows.  Only the first 60 rows are drawn.
    """
    rows = [(row, names) for rows, names in blocks for row in rows]
    left_out, rows = len(rows) - MOST_ROWS, rows[:MOST_ROWS]
    colors = dict(zip(mesh, PALETTE))
    forward = RESULT + 0.2 + BOX * max(len(row.dims) for row, _ in rows)
    backward = forward + 0.3 + max(length_of(row.forward) for row, _ in rows)
    right = backward + 0.1 + max(length_of(row.backward) for row, _ in rows)
    height = TOP + STEP * (len(rows) + 1.6)
    figure, axes = figure_in_inches(right + 0.4, height)
    axes.text(0.15, 0.3, title, fontsize=12, fontweight="bold", va="center", color=BLACK)
    for x, text in ((NAME, "operation"), (WEIGHTS, "weights"), (RESULT, "result"),
                    (forward, "forward sends"), (backward, "backward sends")):
        axes.text(x, TOP - 0.25, text, fontsize=9, color=DARK, va="center")
    places = {row.name: TOP + STEP * (i + 0.5) for i, (row, _) in enumerate(rows)}
    for row, _ in rows:
        y = places[row.name]
        last = row.name.split(".")[-1]
        what = row.operation if last.split(":")[0] == row.operation.lower() else \
            f"{row.name}  {row.operation}"
        axes.text(NAME, y, what, fontsize=8.5, va="center", color=BLACK)
        if row.weights and row.weights[0][1]:
            draw_dims(axes, WEIGHTS, y, row.weights[0][1], row.weight_shape, colors)
        draw_dims(axes, RESULT, y, row.dims, row.shape, colors)
        for x, collectives in ((forward, row.forward), (backward, row.backward)):
            for each in collectives:
                axes.text(x, y, str(each), fontsize=8, va="center", color=colors[each.axes[0]])
                x += length_of([each])
    draw_arcs(axes, [row for row, _ in rows], places)
    draw_braces(axes, rows, places, right)
    handles = [Patch(color=color, label=f"cut over {axis} ({mesh[axis]} ranks)")
               for axis, color in colors.items()]
    handles.append(Patch(facecolor=LIGHT, edgecolor=GREY, label="whole on every rank"))
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.02, 0.0), frameon=False,
                ncols=len(handles), fontsize=9)
    if left_out > 0:
        axes.text(NAME, TOP + STEP * (len(rows) + 0.4), f"… and {left_out} more operations",
                  fontsize=8.5, color=DARK, va="center")
    return save(figure, path)


def length_of(collectives: Sequence[Any]) -> float:
    """About how many inches the texts of collectives take, 1.4 at least."""
    return max(1.4, sum(0.12 + 0.059 * len(str(each)) for each in collectives))


def draw_dims(axes: Axes, x: float, y: float, dims: Sequence[Sequence[str]],
              shape: Sequence[int], colors: Mapping[str, str]) -> None:
    """Draw a value as one box for each dimension, in the colours of the axes that cut it."""
    for i, (cut, length) in enumerate(zip(dims, shape)):
        left, width, high = x + i * BOX, BOX - 0.05, STEP - 0.09
        for part, axis in enumerate(cut or ("",)):
            share = width / max(1, len(cut))
            box(axes, left + part * share, y - high / 2, share, high, linewidth=0.6,
                facecolor=colors.get(axis, LIGHT), edgecolor=GREY)
        axes.text(left + width / 2, y, str(length), fontsize=7.5, ha="center", va="center",
                  color="white" if cut else BLACK)


def draw_arcs(axes: Axes, rows: Sequence[Any], places: Mapping[str, float]) -> None:
    """Draw an arc to each operation that uses a value which the row above it does not make."""
    for i, row in enumerate(rows):
        for name in row.inputs:
            if name in places and i and name != rows[i - 1].name:
                far = min(0.8, 0.06 * (places[row.name] - places[name]) / STEP + 0.1)
                arrow(axes, (NAME - 0.05, places[name]), (NAME - 0.05, places[row.name]),
                      mutation_scale=7, color=GREY, linewidth=1, shrinkA=2, shrinkB=2,
                      connectionstyle=f"arc3,rad={far / (places[row.name] - places[name]) * 2:.3f}")


def draw_braces(axes: Axes, rows: Sequence[tuple[Any, Sequence[str]]],
                places: Mapping[str, float], x: float) -> None:
    """Mark the rows of a block that the model repeats."""
    repeated = [places[row.name] for row, names in rows if len(names) > 1]
    names = next((names for _, names in rows if len(names) > 1), ())
    if repeated:
        top, bottom = min(repeated) - STEP / 2, max(repeated) + STEP / 2
        axes.plot([x, x + 0.06, x + 0.06, x], [top, top, bottom, bottom], color=DARK, linewidth=1)
        axes.text(x + 0.1, (top + bottom) / 2, f"{names[0]}, and the same for {names[1]}"
                  + (f" … {names[-1]}" if len(names) > 2 else ""), fontsize=8.5, color=DARK,
                  va="center", rotation=90)
