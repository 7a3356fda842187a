"""CostCurves over the steps of a training run."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from .colors import BLUE, DARK, GREEN, ORANGE, PURPLE, VERMILION
from .figure import new_figure, save, tidy


def draw_loss(steps: Sequence[float], losses: Sequence[float], path: str | Path, title: str = "",
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


def draw_losses(runs: Mapping[str, Sequence[float]], path: str | Path, title: str = "",
                per: str = "character", window: int = 20) -> Path:
    """Draw the losses of several runs, by what they are called; return the path written.

    Each point is the mean of the `window` steps before it.  The legend is in the order of the last
    losses.  Raises ValueError for a run without that many steps.
    """
    short = [name for name, losses in runs.items() if len(losses) < window]
    if short or not runs:
        raise ValueError(f"{short[0] if short else 'no run'}: at least {window} losses were "
                         "expected: give more, or a smaller window")
    figure, axes = new_figure(8.5, 3.8, title)
    means = {name: np.convolve(losses, np.full(window, 1 / window), "valid")
             for name, losses in runs.items()}
    colors = dict(zip(runs, (DARK, BLUE, GREEN, ORANGE, PURPLE, VERMILION)))
    for name in sorted(means, key=lambda name: -means[name][-1]):
        mean = means[name]
        axes.plot(np.arange(window, window + len(mean)), mean, color=colors[name], linewidth=1.4,
                  label=f"{name}: {mean[-1]:.3f}")
    axes.set_xlabel("step")
    axes.set_ylabel(f"loss in nats per {per}, mean of {window} steps")
    axes.legend(edgecolor="none", loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8.5)
    tidy(axes, "both")
    return save(figure, path)
