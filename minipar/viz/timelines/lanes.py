"""The base of all pictures with lanes: panels below each other, names, boxes, peaks, a time axis.

    rank 0  ▐██▌▐██▌░░░░░▐▓▓▓▌      a lane for each rank, part or request, 1 high, the first on top;
    rank 1     ▐██▌▐██▌▐▓▓▓▌░░      what was done from when to when is a box
            └─────────────────▶ time
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...units import in_bytes
from ..colors import BLACK, GREY, LIGHT
from ..figure import in_units, new_panels

NOTHING = {"facecolor": LIGHT, "hatch": "////", "edgecolor": GREY, "linewidth": 0}   # idle time
HIGHEST = 24.0          # inches, so that a picture of many lanes can still be shown


def lane_panels(sizes: Sequence[int], width: float, lane: float) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each of `sizes`, its number of lanes; a lane has `lane` inches."""
    height = 0.7 + sum(0.9 + lane * size for size in sizes)
    figure, grid = new_panels(width, min(HIGHEST, height), rows=len(sizes), height_ratios=sizes)
    return figure, list(grid[:, 0])


def name_lanes(axes: Axes, names: Sequence[str], middle: float = 0.0, most: int = 32) -> None:
    """Write names beside the lanes, beside every second, third … if they are more than `most`."""
    shown = range(0, len(names), max(1, len(names) // most))
    axes.set_yticks([lane + middle for lane in shown], [names[lane] for lane in shown])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) - 0.5, -0.5)


def time_axis(axes: Axes, until: float) -> None:
    """Make the x axis the time from 0 to `until` seconds."""
    axes.set_xlim(0, until or 1e-9)
    axes.set_xlabel("time")
    in_units(axes.xaxis, "s")


def fill_lanes(axes: Axes, boxes: Iterable[tuple[int, Hashable, float, float]],
               looks: Mapping[Any, Mapping[str, Any]],
               places: Mapping[Any, tuple[float, float]]) -> None:
    """Draw boxes (lane, kind, start, end); `places` are (top, height) of each kind in its lane.

    Boxes of one kind in one lane are one matplotlib collection, so thousands are drawn fast.
    """
    groups = defaultdict(list)
    for lane, kind, start, end in boxes:
        groups[lane, kind].append((start, end - start))
    for (lane, kind), spans in groups.items():
        top, height = places[kind]
        axes.broken_barh(spans, (lane + top, height), gid="boxes", **looks[kind])


def write_peak(axes: Axes, x: float, y: float) -> None:
    """Draw a dot where memory is highest, and its bytes, on the side where there is room."""
    axes.plot(x, y, "o", color=BLACK, markersize=5, clip_on=False)
    late = x > 0.6 * axes.get_xlim()[1]
    axes.annotate(f"peak {in_bytes(y)}", (x, y), xytext=(-4 if late else 4, 5),
                  textcoords="offset points", ha="right" if late else "left", fontsize=9.5,
                  fontweight="bold")
