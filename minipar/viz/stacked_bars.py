"""Bars made of parts, predicted, with what was measured marked on them."""

from collections.abc import Mapping
from pathlib import Path

from ..units import in_bytes
from .colors import BLACK, PALETTE
from .figure import new_figure, save, tidy


def draw_stacked_bars(path: str | Path, bars: Mapping[str, Mapping[str, float]],
                 measured: Mapping[str, float], title: str = "", label: str = "bytes") -> Path:
    """Draw each of `bars`, {name: {part: bytes}}, and a diamond at its measured total.

    Parts have the same colour in all bars, in the order of their first appearance.  Returns the
    path written.  Raises ValueError for a bar that was not measured.
    """
    missing = [name for name in bars if name not in measured]
    if missing or not bars:
        raise ValueError(f"no measured total for {', '.join(missing) or 'any bar'}: give one each")
    figure, axes = new_figure(2.2 + 1.75 * len(bars), 4.6, title)
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    bottom = dict.fromkeys(bars, 0.0)
    for i, part in enumerate(parts):
        values = {name: bar.get(part, 0.0) for name, bar in bars.items()}
        axes.bar(list(bars), list(values.values()), bottom=list(bottom.values()), width=0.6,
                 color=PALETTE[i % len(PALETTE)], edgecolor="white", label=part, zorder=2)
        bottom = {name: bottom[name] + values[name] for name in bars}
    axes.plot(list(bars), [measured[name] for name in bars], "D", color=BLACK, markersize=7,
              markeredgecolor="white", label="measured, all of it", zorder=3)
    for name in bars:
        axes.annotate(in_bytes(measured[name]), (name, max(measured[name], bottom[name])),
                      xytext=(0, 7), textcoords="offset points", ha="center", va="bottom",
                      fontsize=9)
    axes.set_ylim(0, max(*bottom.values(), *measured.values()) * 1.12)
    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(lambda value, _: in_bytes(value))
    tidy(axes, "y")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False, loc="upper left",
                bbox_to_anchor=(1.0, 1.0), fontsize=9)
    return save(figure, path)
