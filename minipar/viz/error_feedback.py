"""The effect of rounded messages on a sum of small numbers, and on the loss.

    what arrived   │   ___╱‾‾ true          loss    │      ⁘
                   │ _╱‾                            │  ·       ░ ± 1 %
                   │▁▁▁▁▁▁▁▁ nothing                │ float32

With error feedback the error of the sum does not grow.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .colors import BLUE, DARK, GREEN, LIGHT, VERMILION
from .figure import empty_figure, save, tidy


def draw_error_feedback(path: str | Path, arrived: Mapping[str, Sequence[float]],
                  excess: Mapping[str, Sequence[float]], title: str = "", small: str = "") -> Path:
    """Draw two panels; return the path written.

    `arrived` is the sum of what arrived of one number, called `small`, after each step, by how it
    was sent.  `excess` are final losses of several runs, in % above those that sent float32, by
    what they sent.  Raises ValueError where one of the two is empty.
    """
    if not (arrived and excess):
        raise ValueError("give at least one way to send a number, and one set of losses")
    figure = empty_figure(11, 4.2, title)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.25))
    for axes in (left, right):
        tidy(axes, "both")
    for (name, sums), color, line in zip(arrived.items(), (DARK, BLUE, VERMILION, GREEN),
                                         ("--", "-", "-", "-")):
        left.step(range(1, len(sums) + 1), sums, line, where="mid", color=color, linewidth=1.6,
                  label=name)
    left.set_title(f"the sum of {small}" if small else "a small number", fontsize=9, loc="left")
    left.set_xlabel("step")
    left.set_ylabel("what arrived, added up")
    left.legend(edgecolor="none", fontsize=8.5)
    rows = range(len(excess))
    right.axvspan(-1, 1, color=LIGHT, label="± 1 %")
    right.axvline(0, color=DARK, linewidth=1)
    for row, values in zip(rows, excess.values()):
        right.plot(values, np.full(len(values), row), "o", color=BLUE, markersize=6, alpha=0.6,
                   label="" if row else "one seed")
        right.plot([np.mean(values)], [row], "|", color=VERMILION, markersize=22,
                   markeredgewidth=2.5, label="" if row else "mean")
    right.set_yticks(rows, list(excess))
    right.set_ylim(len(excess) - 0.5, -0.5)
    right.set_title("final loss", fontsize=9, loc="left")
    right.set_xlabel("% above that of float32 messages")
    right.legend(edgecolor="none", fontsize=8.5, markerscale=0.5)
    return save(figure, path)
