"""Tokens flow to experts: how many rows travel from which rank to which expert.

    rank 0  ▇▇▇▇━━━━━━━━━━━▇▇ expert 0
            ▇▇▇━━━━╲╱━━━━━━▇▇ expert 1       grey: the expert is on the token's own rank
    rank 1  ▇▇▇━━━━╱╲━━━━━━▇▇▇ expert 2      red: dropped, the expert has no place left
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path as Outline

from .colors import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, YELLOW
from .figure import legend_below, new_figure, save

COLORS = BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW
LEFT, RIGHT, THICK = 0.0, 10.0, 0.35        # where ranks and experts stand, and how thick they are
GAP, RANK_GAP = 0.02, 0.06                  # between experts, between ranks: of the height


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
    owner = [r for r, (start, stop) in enumerate(bounds) for _ in range(start, stop)]
    left_tops = np.cumsum([0, *(sent.sum(axis=1) + dropped)[:-1]]) / total
    left_tops = left_tops + RANK_GAP * np.arange(num_ranks)
    right_tops = np.cumsum([0, *sent.sum(axis=0)[:-1]]) / total
    right_tops = right_tops + GAP * np.arange(num_experts) + (RANK_GAP - GAP) * np.array(owner)
    height = 1 + RANK_GAP * (num_ranks - 1)
    stretch = height / (right_tops[-1] + sent[:, -1].sum() / total)     # both sides as high
    into = np.array(right_tops) * stretch
    for rank in range(num_ranks):
        here, share = left_tops[rank], (sent[rank].sum() + dropped[rank]) / total
        axes.add_patch(Rectangle((LEFT - THICK, here), THICK, share, color=color_of(rank)))
        axes.text(LEFT - THICK - 0.15, here + share / 2, f"rank {rank}\n{sent[rank].sum()} rows",
                  ha="right", va="center", fontsize=9)
        for expert in range(num_experts):
            rows = sent[rank, expert] / total
            if rows:
                stays = owner[expert] == rank
                ribbon(axes, here, into[expert], rows, GREY if stays else color_of(owner[expert]))
                here, into[expert] = here + rows, into[expert] + rows
        if dropped[rank]:
            axes.add_patch(Rectangle((LEFT, here), 0.5, dropped[rank] / total, color=RED))
            axes.text(LEFT + 0.6, here + dropped[rank] / total / 2, f"{dropped[rank]} dropped",
                      color=RED, va="center", fontsize=8)
    for expert in range(num_experts):
        rows = sent[:, expert].sum()
        top = into[expert] - rows / total
        axes.add_patch(Rectangle((RIGHT, top), THICK, max(rows / total, 0.003),
                                 color=color_of(owner[expert])))
        axes.text(RIGHT + THICK + 0.15, top + rows / total / 2,
                  f"expert {expert} on rank {owner[expert]}: {rows}", va="center", fontsize=8,
                  color=BLACK)
    axes.set_xlim(LEFT - 2.2, RIGHT + 3.6)
    axes.set_ylim(height + 0.03, -0.03)
    axes.axis("off")
    legend_below(figure, [Patch(color=GREY, label="rows that stay on their rank"),
                          Patch(color=color_of(0), label="rows that travel, in the colour of "
                                                         "the rank that they go to"),
                          Patch(color=RED, label="dropped choices")], 3)
    return save(figure, path)


def color_of(rank: int) -> str:
    """The colour of a rank."""
    return COLORS[rank % len(COLORS)]


def ribbon(axes: Axes, start: float, stop: float, width: float, color: str) -> None:
    """A band of `width` from the height `start` at the left to `stop` at the right."""
    middle = (LEFT + RIGHT) / 2
    points = [(LEFT, start), (middle, start), (middle, stop), (RIGHT, stop),
              (RIGHT, stop + width), (middle, stop + width), (middle, start + width),
              (LEFT, start + width), (LEFT, start)]
    codes = [Outline.MOVETO, *[Outline.CURVE4] * 3, Outline.LINETO, *[Outline.CURVE4] * 3,
             Outline.CLOSEPOLY]
    axes.add_patch(PathPatch(Outline(points, codes), facecolor=color, alpha=0.55, linewidth=0))
