"""What every picture shares: a figure without global state, units, a safe way to save."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..atomic_files import replace_file


def new_figure(width: float, height: float, title: str = "") -> tuple[Figure, Axes]:
    """A figure of so many inches with one pair of axes, the title at its left."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=130)
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


class Picture(type(Path())):
    """The path of a picture; as the value of a notebook's cell it shows itself."""

    def _repr_png_(self) -> bytes | None:
        return self.read_bytes() if self.suffix.lower() == ".png" and self.is_file() else None

    def _repr_svg_(self) -> str | None:
        return self.read_text("utf-8") if self.suffix.lower() == ".svg" and self.is_file() else None


def save(figure: Figure, path: str | Path) -> Picture:
    """Write the figure as what the suffix says (.png, .svg, .pdf), whole or not at all.

    Raises ValueError for another one.
    """
    kind = Path(path).suffix[1:].lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise ValueError(f"{str(path)!r} does not say which kind of picture: give a name that ends "
                         "in .png, .svg or .pdf")
    return Picture(replace_file(
        path, lambda file: figure.savefig(file, format=kind, facecolor="white")))
