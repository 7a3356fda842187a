"""Experts: where tokens travel, and how evenly experts are used over training.

    rank 0  ▇▇▇▇━━━━━━━━━━━▇▇ expert 0
            ▇▇▇━━━━╲╱━━━━━━▇▇ expert 1       grey: the expert is on the token's own rank
    rank 1  ▇▇▇━━━━╱╲━━━━━━▇▇▇ expert 2      red: dropped, the expert has no place left
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ..colors import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, YELLOW
from ..figure import box, empty_figure, legend_below, new_figure, save, whole_numbers

COLORS = BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW
RIGHT, THICK = 10.0, 0.35           # x of the experts (ranks are at 0); thickness of both
GAP, RANK_GAP = 0.02, 0.06          # gaps of experts, of ranks; the bars together are 1 high
MOST = 2.0              # times the even share: the end of the scale of colours


def draw_token_flow(path: str | Path, sent: np.ndarray, dropped: np.ndarray,
                    bounds: Sequence[tuple[int, int]], title: str = "") -> Path:
    """Draw sent[r, e] rows from rank r to expert e, and dropped[r] choices that found no place.

    bounds[r] are the (start, stop) of the experts of rank r.  Returns the path written.  Raises
    ValueError for arrays that do not fit.
    """
    num_ranks, num_experts = sent.shape
    if len(dropped) != num_ranks or len(bounds) != num_ranks or bounds[-1][1] != num_experts:
        raise ValueError(f"rows from {num_ranks} ranks to {num_experts} experts need as many "
                         f"dropped numbers and bounds, not {len(dropped)} and {len(bounds)}")
    figure, axes = new_figure(8, max(3.5, 0.7 + 0.28 * num_experts + 0.3 * num_ranks), title)
    total = float(sent.sum() + dropped.sum()) or 1.0
    leave, arrive, lost = sent / total, sent.sum(axis=0) / total, dropped / total
    given = leave.sum(axis=1) + lost
    owner = np.repeat(range(num_ranks), [stop - start for start, stop in bounds])
    left = np.cumsum([0, *given[:-1]]) + RANK_GAP * np.arange(num_ranks)
    right = np.cumsum([0, *arrive[:-1]]) + GAP * np.arange(num_experts) + (RANK_GAP - GAP) * owner
    height = 1 + RANK_GAP * (num_ranks - 1)
    right *= height / (right[-1] + arrive[-1])          # make both sides equally high
    into = right.copy()
    for rank, here in enumerate(left):
        box(axes, -THICK, here, THICK, given[rank], color=color_of(rank))
        axes.text(-THICK - 0.15, here + given[rank] / 2, f"rank {rank}\n{sent[rank].sum()} rows",
                  ha="right", va="center", fontsize=9)
        for expert in np.flatnonzero(sent[rank]):
            rows = leave[rank, expert]
            _ribbon(axes, here, into[expert], rows,
                    GREY if owner[expert] == rank else color_of(owner[expert]))
            here, into[expert] = here + rows, into[expert] + rows
        if dropped[rank]:
            box(axes, 0, here, 0.5, lost[rank], color=RED)
            axes.text(0.6, here + lost[rank] / 2, f"{dropped[rank]} dropped", color=RED,
                      va="center", fontsize=8)
    for expert, top in enumerate(right):
        box(axes, RIGHT, top, THICK, max(arrive[expert], 0.003), color=color_of(owner[expert]))
        axes.text(RIGHT + THICK + 0.15, top + arrive[expert] / 2, f"expert {expert} on rank "
                  f"{owner[expert]}: {sent[:, expert].sum()}", va="center", fontsize=8)
    axes.set(xlim=(-2.2, RIGHT + 3.6), ylim=(height + 0.03, -0.03))
    axes.axis("off")
    legend_below(figure, [Patch(color=GREY, label="rows that stay on their rank"),
                          Patch(color=color_of(0), label="rows that travel, in the colour of "
                                                         "the rank that they go to"),
                          Patch(color=RED, label="dropped choices")], 3)
    return save(figure, path)


def color_of(rank: int) -> str:
    """The colour of a rank."""
    return COLORS[rank % len(COLORS)]


def _ribbon(axes: Axes, start: float, stop: float, width: float, color: str) -> None:
    """A band of `width` from the height `start` at the left to `stop` at the right."""
    t = np.linspace(0, 1, 50)           # along a Bézier curve that is flat at both ends
    x, upper = 1.5 * t * (1 - t) + t**3, start + (stop - start) * (3 - 2 * t) * t**2
    axes.fill_between(RIGHT * x, upper, upper + width, facecolor=color, alpha=0.55, linewidth=0)


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
    axes.set_xlabel("step")
    whole_numbers(axes.xaxis)
    bar = figure.colorbar(image, ax=list(rows), ticks=[0, 0.5, 1, 1.5, 2], shrink=0.9)
    bar.ax.set_yticklabels(["0: unused", "0.5", "1: even use", "1.5", "2 and more"], fontsize=8)
    bar.set_label("choices, relative to even use", fontsize=9)
    return save(figure, path)
