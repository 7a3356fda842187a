"""What every picture shares: a figure without global state, units, a safe way to save."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure


def new_figure(width: float, height: float, title: str = "") -> tuple[Figure, Axes]:
    """A figure of so many inches with one pair of axes, the title at its left."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=130)
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Context that gives the name of a file to write, which becomes `path` whole or not at all.

    What is no file, as /dev/stdout, is written itself.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        yield path
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure as what the suffix says (.png, .svg, .pdf), whole or not at all.

    Raises ValueError for another one.
    """
    if Path(path).suffix[1:].lower() not in figure.canvas.get_supported_filetypes():
        raise ValueError(f"{str(path)!r} does not say which kind of picture: give a name that ends "
                         "in .png, .svg or .pdf")
    with replacing(path) as unfinished:
        figure.savefig(unfinished, facecolor="white")
    return Path(path)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file in UTF-8, whole or not at all; return its path."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return Path(path)


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which so many seconds read best, and how many of it make a second."""
    for name, per_second in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * per_second >= 1:
            return name, per_second
    return "ns", 1e9


def byte_unit(count: float) -> tuple[str, float]:
    """The unit in which so many bytes read best (powers of 1000), and how many bytes it has."""
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    size = 1.0
    while count >= 1000 * size and len(units) > 1:
        size *= 1000
        del units[0]
    return units[0], size


def in_bytes(count: float) -> str:
    """A number of bytes as a person writes it: 512 B, 4 kB, 1.5 MB (powers of 1000)."""
    name, size = byte_unit(count)
    return f"{count / size:.4g} {name}"
