"""The picture of docs/pages/late_weights.md: `python -m tests.support.late_weights_page` draws it.

Each mark is a run of PipeDream whose first stage is D steps late, on w² / 2 (late_quadratic.py).
"""

from pathlib import Path

import numpy as np

from minipar.viz.colors import BLACK, BLUE, RED
from minipar.viz.figure import new_figure, save, whole_numbers
from tests.support.late_quadratic import weights

PICTURE = Path(__file__).parents[2] / "docs" / "pages" / "images" / "late_weights.png"
DELAYS, FACTORS, STEPS = range(8), (0.7, 0.9, 1.1, 1.3), 300


def limit(delay: float) -> float:
    """The largest stable lr times curvature."""
    return 2 * np.sin(np.pi / (4 * delay + 2))


def grows(delay: int, lr: float) -> bool:
    """True if the weight of such a run is larger at its end than soon after its beginning."""
    w = np.abs(weights(delay, lr, STEPS))
    return bool(w[-30:].max() > w[40:70].max())


def draw() -> None:
    """Draw the limit, and runs around it."""
    figure, axes = new_figure(6.4, 3.6, "Late gradients want small steps")
    line = np.linspace(0, max(DELAYS), 200)
    axes.plot(line, limit(line), color=BLACK, label="2 sin(π / (4D + 2))")
    runs = [(delay, factor * limit(delay)) for delay in DELAYS for factor in FACTORS]
    for name, color, marker, wanted in (("a run that settles", BLUE, "o", False),
                                        ("a run that grows", RED, "x", True)):
        here = [run for run in runs if grows(*run) == wanted]
        axes.plot(*zip(*here), marker, color=color, label=name, linestyle="")
    axes.set_yscale("log")
    axes.set_yticks([0.2, 0.5, 1, 2], ["0.2", "0.5", "1", "2"])
    axes.minorticks_off()
    axes.set_xlabel("delay D: stage 0 of D + 1 stages")
    axes.set_ylabel("lr · curvature")
    axes.legend(frameon=False)
    whole_numbers(axes.xaxis)
    save(figure, PICTURE)


if __name__ == "__main__":
    draw()
