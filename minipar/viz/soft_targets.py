"""A teacher's probabilities for one input, at growing temperatures, as bars side by side.

    ▒▓▒ │      █      │      █      │      █      │     ▂█▁▃▁     all that is not the answer
    the │   label     │    T = 1    │    T = 2    │     T = 4     grows out of nothing

The bars are softmax(logits / T).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .colors import BLUE, DARK, ORANGE
from .figure import empty_figure, save, tidy

TELL = 0.01     # probabilities from here on are written above their bars


def draw_soft_targets(path: str | Path, image: np.ndarray, bars: Mapping[str, Sequence[float]],
                  truth: int, title: str = "") -> Path:
    """Draw `image` (height, width), and beside it for each of `bars` the probabilities of classes
    0, 1, …, that of the true one in its colour.  Returns the path written.

    Raises ValueError unless all have the same number of classes, `truth` one of them.
    """
    sizes = {len(values) for values in bars.values()}
    if len(sizes) != 1 or not 0 <= truth < min(sizes):
        raise ValueError(f"bars of one number of classes were expected, and truth {truth} one of "
                         f"them, not {sorted(sizes)} classes")
    figure = empty_figure(2.0 + 2.5 * len(bars), 3.1, title)
    shown, *rest = figure.subplots(1, 1 + len(bars), width_ratios=[0.8, *[1.0] * len(bars)])
    shown.imshow(image, cmap="gray_r")
    shown.set_title("input", fontsize=10)
    shown.set_xticks([])
    shown.set_yticks([])
    for axes, (name, values) in zip(rest, bars.items()):
        classes = range(len(values))
        axes.bar(classes, values, color=[ORANGE if c == truth else BLUE for c in classes])
        for c, value in zip(classes, values):
            if value >= TELL:
                axes.text(c, value + 0.015, f"{value:.0%}", ha="center", fontsize=7, color=DARK)
        axes.set_title(name, fontsize=10)
        axes.set_ylim(0, 1.08)
        axes.set_xticks(classes)
        axes.tick_params(labelsize=8)
        axes.set_xlabel("class", fontsize=9)
        tidy(axes, "y")
        if axes is not rest[0]:
            axes.set_yticklabels([])
    rest[0].set_ylabel("probability", fontsize=9)
    rest[0].bar([0], [0], color=ORANGE, label="the true class")
    rest[0].legend(frameon=False, fontsize=8, loc="upper right" if truth < 5 else "upper left")
    return save(figure, path)
