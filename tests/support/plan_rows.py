"""The published runs by which `minipar plan` is judged, and how well it does."""

import random
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

from minipar.plan.cluster import read_cluster
from minipar.plan.models import head_width, layer_parameters, model_flops
from minipar.plan.table import PlanRow, Prediction, predict, read_rows

FOLDER = Path(__file__).parents[1] / "plan" / "rows"
SOURCES = tomllib.loads((FOLDER / "sources.toml").read_text("utf-8"))
SEED = 0
Cell = tuple[str, int]                  # a model on a number of nodes


class Judged(NamedTuple):
    """A row, and what the plan says of it."""

    row: PlanRow
    found: Prediction
    seconds: float | None               # of a step, measured; None for a run that failed

    @property
    def error(self) -> float:
        """Predicted over measured seconds, less 1."""
        assert self.seconds is not None
        return self.found.seconds / self.seconds - 1

    @property
    def gib(self) -> float:
        """Measured memory of a GPU."""
        return float(self.row.columns["gpu_gb"])

    @property
    def memory_error(self) -> float:
        """Predicted over measured memory, less 1."""
        return self.found.memory_gb / self.gib - 1

    @property
    def cell(self) -> Cell:
        """The model and the number of nodes."""
        return self.row.columns["model"], self.row.cluster.nodes


@cache
def ultrascale() -> tuple[list[Judged], list[Judged]]:
    """The half of the layouts that numbers were fitted to, and the other one."""
    rows = read_rows(FOLDER / "ultrascale.csv", read_cluster("1x8:h100"))
    random.Random(SEED).shuffle(rows)
    middle = len(rows) // 2
    return judge(rows[:middle]), judge(rows[middle:])


@cache
def published() -> list[Judged]:
    """The other published runs."""
    return judge(read_rows(FOLDER / "published.csv", read_cluster("1x8:a100")))


def judge(rows: Iterable[PlanRow]) -> list[Judged]:
    """The rows with their predictions."""
    return [Judged(row, predict(row), measured_seconds(row)) for row in rows]


def measured_seconds(row: PlanRow) -> float | None:
    """Seconds of a step, from what was published."""
    columns = row.columns
    if "tok_s" in columns:
        return row.tokens / float(columns["tok_s"]) if columns["tok_s"] else None
    value, gpus = float(columns["value"]), row.layout.num_gpus
    if columns["metric"] == "s":
        return value
    if columns["metric"] == "tokens":
        return row.tokens / value / gpus
    return published_flops(columns["metric"], row) / (value * 1e12 * gpus)


def published_flops(convention: str, row: PlanRow) -> float:
    """FLOPs by which a publication counts.

    "mfu": model_flops; "hw4": with a second forward of the layers (Narayanan et al. 2021, equation
    3); "causal": with half of the attention.
    """
    model, attention = row.model, 4 * row.model.context * row.model.num_heads
    of_layers = model.num_layers * row.tokens
    products = 2 * layer_parameters(model, active=True) * of_layers
    scores = attention * head_width(model) * of_layers
    return {"mfu": model_flops(model, row.tokens),
            "hw4": model_flops(model, row.tokens) + products + scores,
            "causal": model_flops(model, row.tokens) - 1.5 * scores}[convention]


class Scores(NamedTuple):
    """How good predictions of the Ultra-Scale rows are; shares and relative errors."""

    time: float                 # median error
    fast_time: float            # … of rows with more than 30 % MFU
    memory: float               # median error
    fit: float                  # share of measured rows said to fit
    failed: float               # share of failed rows said not to fit, or to be slow
    regret: float               # the chosen layout's time over the best's, less 1: median of cells
    worst_regret: float         # … the worst up to 32 nodes
    rank: float                 # correlation of speed within a cell, median
    small_rank: float           # … up to 16 nodes


def scores(rows: Sequence[Judged]) -> Scores:
    """The scores; regret and rank are those of the cells with at least five measured rows."""
    done = [j for j in rows if j.seconds]
    best: dict[Cell, float] = defaultdict(float)
    cells: dict[Cell, list[Judged]] = defaultdict(list)
    for j in done:
        best[j.cell] = max(best[j.cell], j.row.tokens / j.seconds)
        cells[j.cell].append(j)
    failed = [not j.found.fits or j.found.tokens_s < 0.3 * best[j.cell]
              for j in rows if not j.seconds]
    large = {cell: of for cell, of in cells.items() if len(of) >= 5}
    regret = {cell: chosen(of).seconds / min(j.seconds for j in of) - 1
              for cell, of in large.items()}
    from scipy.stats import spearmanr  # a second, which collecting the tests need not take
    rank = {cell: spearmanr([-j.found.seconds / j.found.fits if j.found.fits else -float("inf")
                             for j in of], [-j.seconds for j in of]).statistic
            for cell, of in large.items()}
    return Scores(
        median(abs(j.error) for j in done),
        median(abs(j.error) for j in done if float(j.row.columns["mfu"]) > 30),
        median(abs(j.memory_error) for j in done), mean(j.found.fits for j in done), mean(failed),
        median(regret.values()), max(x for (_, nodes), x in regret.items() if nodes <= 32),
        median(rank.values()), median(x for (_, nodes), x in rank.items() if nodes <= 16))


def chosen(rows: Sequence[Judged]) -> Judged:
    """The row that the plan would take: the fastest one that is said to fit."""
    return min(rows, key=lambda j: (not j.found.fits, j.found.seconds))


def mean(values: Iterable[float]) -> float:
    """The mean."""
    values = [*values]
    return sum(values) / len(values)
