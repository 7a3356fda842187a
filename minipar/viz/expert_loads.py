"""The use of experts over training: an even colour is an even use."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from .figure import empty_figure, save

MOST = 2.0              # times the even share: the end of the scale of colours


def draw_expert_loads(path: str | Path, panels: Mapping[str, np.ndarray], first_step: int = 0,
                      title: str = "") -> Path:
    """Draw the choices of each expert in each step (steps, E), a panel for each of `panels`.

    Colours say how often an expert was chosen, relative to an even use: white is 1.  Returns the
    path written.  Raises ValueError without panels, or for one without a step.
    """
    if not panels or any(loads.ndim != 2 or not len(loads) for loads in panels.values()):
        raise ValueError("nothing to draw: give each panel an array (steps, experts) of choices")
    figure = empty_figure(8, 1.1 + 1.5 * len(panels), title)
    rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (name, loads) in zip(rows, panels.items()):
        steps, num_experts = loads.shape
        share = loads / np.maximum(loads.mean(axis=1, keepdims=True), 1e-9)
        image = axes.imshow(share.T, aspect="auto", cmap="RdBu_r", vmin=0, vmax=MOST,
                            interpolation="nearest",
                            extent=(first_step + 0.5, first_step + steps + 0.5,
                                    num_experts - 0.5, -0.5))
        busiest = share.max(axis=1)
        axes.set_title(f"{name}: the busiest expert has {busiest[0]:.1f} times the mean at the "
                       f"beginning, {busiest[-1]:.1f} at the end", loc="left", fontsize=9)
        axes.set_ylabel("expert")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    rows[-1].set_xlabel("step")
    rows[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(image, ax=list(rows), ticks=[0, 0.5, 1, 1.5, 2], shrink=0.9)
    bar.ax.set_yticklabels(["0: unused", "0.5", "1: even use", "1.5", "2 and more"], fontsize=8)
    bar.set_label("choices, relative to even use", fontsize=9)
    return save(figure, path)
