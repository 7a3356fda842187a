"""Layouts as CSV: read rows, write them again with what the plan says of each.

    dp,tp,pp,mbs,grad_acc,zero          must be there
    model                               a known name; or layers,width,heads,vocab and other sizes
    cp,ep,v,schedule,kind,remat,sp      if a layout has them
    nodes                               if there are more than the fewest that hold its GPUs
    cluster,nic_shared_by               if they differ from the command's
    sequence                            tokens of a sample, if not the command's
    gpus,gbs                            are checked against the layout

Other columns are passed on.  In tables of measured runs `tok_s` has tokens per second, empty if the
run failed, and `gpu_gb` the memory.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TextIO

from ..nn import GPTConfig
from .cluster import MOST_GPUS, ClusterSpec, file_of, from_file
from .layout import ZERO, Layout, find_unknown, layout_fault
from .memory import GIB, memory, total
from .models import KNOWN, model_of, read_model
from .time.stalls import StallRange, stall_range

WORDS = {"true": 1, "yes": 1, "false": 0, "no": 0}
COUNTS = ("nodes", "nic_shared_by", "sequence")        # not 0, if they are given
REQUIRED = ("dp", "tp", "pp", "mbs", "grad_acc", "zero")


class PlanRow(NamedTuple):
    """A row of a table: its columns, and the cluster, model and layout that they mean."""

    columns: dict[str, str]
    cluster: ClusterSpec
    model: GPTConfig
    layout: Layout

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.layout.batch * self.model.context


class Prediction(NamedTuple):
    """The plan's prediction for a row."""

    seconds: float
    tokens_s: float
    memory_gb: float                # GiB that the device reports
    fits: bool                      # in memory, and the model can be cut so
    stalls: StallRange              # the seconds with and without stalls


def read_rows(path: Path, cluster: ClusterSpec) -> list[PlanRow]:
    """The rows of a CSV file, on nodes of `cluster`'s kind.  Raises ValueError and OSError."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = (line for line in file if not line.startswith("#"))
        table = csv.DictReader(lines)
        missing = [name for name in REQUIRED if name not in (table.fieldnames or ())]
        if missing:
            raise ValueError(f"{path} has no column {missing[0]!r}: expected "
                             f"{', '.join(REQUIRED)} and a model")
        rows = []
        for number, columns in enumerate(table, 1):
            try:
                if None in columns:
                    raise ValueError("there are more cells than columns")
                rows.append(row_of(columns, cluster))
            except (ValueError, OverflowError) as error:
                raise ValueError(f"{path}, row {number}: {error}") from error
    return rows


def row_of(columns: dict[str, str], cluster: ClusterSpec) -> PlanRow:
    """The row that columns mean, on a cluster of their own if they name one.  ValueError."""
    layout = layout_of(columns)
    if columns.get("cluster"):
        name, _, software = columns["cluster"].partition("/")
        cluster = from_file(file_of(name), software)
    nodes = number(columns, "nodes", 0) or -(-layout.num_gpus // cluster.per_node)
    shared = number(columns, "nic_shared_by", 0) or cluster.nic_shared_by
    if nodes * cluster.per_node < layout.num_gpus:
        raise ValueError(f"{layout.num_gpus} ranks do not fit on {nodes} nodes of "
                         f"{cluster.per_node} GPUs")
    for name, made in (("gpus", layout.num_gpus), ("gbs", layout.batch)):
        if (said := number(columns, name, made)) != made:
            raise ValueError(f"{name} is {said}, but the layout makes {made}")
    return PlanRow(columns, with_nodes(cluster, nodes, shared), model_in(columns), layout)


def number(columns: dict[str, str], name: str, default: int = 1) -> int:
    """The whole number of a cell, or a default for an empty one.  Raises ValueError."""
    text = (columns.get(name) or "").strip()
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if not text and name in REQUIRED:
        raise ValueError(f"{name} is missing")
    try:
        value = float(text) if text else default
        is_whole = value == int(value)
    except (ValueError, OverflowError):
        is_whole = False
    if not is_whole:
        raise ValueError(f"{name} is a whole number, not {text!r}")
    least = int(name in COUNTS)
    if text and value < least:
        raise ValueError(f"{name} is at least {least}, not {text}")
    return int(value)


def model_in(columns: dict[str, str]) -> GPTConfig:
    """The model of a row, by its sizes or its name.  Raises ValueError."""
    if columns.get("layers"):
        return sized_model(tuple((name, number(columns, name, 0)) for name in KNOWN
                                 if columns.get(name)))
    if not columns.get("model"):
        raise ValueError("a model is missing: give its name, or layers, width, heads and vocab")
    return read_model(columns["model"], number(columns, "sequence", 0) or None)


def layout_of(columns: dict[str, str]) -> Layout:
    """The layout of a row.  Raises ValueError."""
    stage = number(columns, "zero", 0)
    if not 0 <= stage < len(ZERO):
        raise ValueError(f"zero is 0 to {len(ZERO) - 1}, not {stage}")
    dp, tp, pp, cp, ep, v, microbatch, accumulated = (
        number(columns, name) for name in ("dp", "tp", "pp", "cp", "ep", "v", "mbs", "grad_acc"))
    if min(dp, tp, pp, cp, ep, v, microbatch, accumulated) < 1:
        raise ValueError("axes, mbs and grad_acc are at least 1")
    layout = Layout(
        dp, tp, pp, cp, ep, sp=bool(number(columns, "sp")), v=v, microbatch=microbatch,
        batch=dp * microbatch * accumulated,
        kind=columns.get("kind") or ZERO[stage], remat=columns.get("remat") or "none",
        schedule=columns.get("schedule") or ("interleaved" if v > 1 else "1f1b"))
    if layout.num_gpus > MOST_GPUS:
        raise ValueError(f"{layout.num_gpus:,} GPUs are too many: at most {MOST_GPUS:,}")
    if fault := find_unknown(layout):
        raise ValueError(fault)
    return layout


@lru_cache(1000)
def sized_model(sizes: tuple[tuple[str, int], ...]) -> GPTConfig:
    """The model of these columns."""
    return model_of(dict(sizes))


@lru_cache(1000)
def with_nodes(cluster: ClusterSpec, nodes: int, nic_shared_by: float) -> ClusterSpec:
    """The cluster on that many nodes."""
    return replace(cluster, nodes=nodes, nic_shared_by=nic_shared_by)


def predict(row: PlanRow) -> Prediction:
    """Seconds, tokens per second, GiB; and whether the run fits."""
    cluster = row.cluster
    found = stall_range(cluster, row.model, row.layout)
    num_bytes = total(cluster, memory(cluster, row.model, row.layout))
    can_run = not layout_fault(row.layout, row.model, row.layout.num_gpus)
    return Prediction(found.seconds, row.tokens / found.seconds, num_bytes / GIB,
                      num_bytes <= cluster.usable and can_run, found)


def write_rows(rows: Sequence[dict[str, str]], file: TextIO) -> None:
    """Write columns as CSV."""
    table = csv.DictWriter(file, [*rows[0]] if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)


def predicted_columns(rows: Iterable[PlanRow]) -> Iterator[dict[str, str]]:
    """The columns of each row, and those that are predicted."""
    for row in rows:
        found = predict(row)
        yield row.columns | {
            "seconds": f"{found.seconds:.6g}", "tokens_s": f"{found.tokens_s:.6g}",
            "memory_gb": f"{found.memory_gb:.4g}", "fits": str(int(found.fits)),
            "seconds_usual": f"{found.stalls.usual:.6g}",
            "seconds_stalled": f"{found.stalls.stalled:.6g}",
            "stall_share": f"{found.stalls.share:.2g}"}
