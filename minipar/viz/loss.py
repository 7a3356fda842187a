"""The loss over the steps of a training run."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from .colors import BLUE, GREEN, ORANGE
from .figure import new_figure, save, tidy


def draw_loss(path: str | Path, steps: Sequence[float], losses: Sequence[float], title: str = "",
              validation: tuple[Sequence[float], Sequence[float]] | None = None,
              reference: tuple[float, str] | None = None, per: str = "character") -> Path:
    """Draw the loss in nats (at the right: in bits) over the steps; return the path written.

    `validation` is (steps, losses) measured on other data.  `reference` is (loss, what it is), a
    horizontal line: for example ln(vocabulary), the loss of guessing evenly.  `per` is what one
    target is.  Raises ValueError where steps and losses do not pair up, or there are none.
    """
    series = {"training": (steps, losses), **({"validation": validation} if validation else {})}
    for name, (xs, ys) in series.items():
        if len(xs) != len(ys) or not len(xs):
            raise ValueError(f"{name}: {len(xs)} steps and {len(ys)} losses: give one of each for "
                             "every point, at least one")
    figure, axes = new_figure(8, 4.5, title)
    dot = {"marker": "o", "markersize": 3} if len(steps) <= 40 else {}
    axes.plot(steps, losses, color=BLUE, linewidth=1.4, **dot,
              label=f"training, {losses[-1]:.3g} at the end")
    if validation:
        axes.plot(*validation, color=ORANGE, marker="o", markersize=4, linewidth=1.4,
                  label="validation")
    if reference:
        axes.axhline(reference[0], color=GREEN, linestyle="--", linewidth=1.2, label=reference[1])
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(f"loss in nats per {per}")
    tidy(axes, "both")
    bits = axes.secondary_yaxis("right", functions=(lambda nats: nats / math.log(2),
                                                    lambda bits: bits * math.log(2)))
    bits.set_ylabel(f"bits per {per}")
    axes.legend(framealpha=1, edgecolor="none", loc="center right")
    return save(figure, path)
