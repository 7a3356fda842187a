"""Fit the numbers of a software to measured runs: `python -m tests.support.plan_fit` prints them.

Nine numbers of `nanotron` on H100 by least squares of the logarithm of predicted over measured
seconds, large ones damped (Cauchy), on a seeded half of the Ultra-Scale rows; two of memory by the
median; and one efficiency for each group of other runs.  A row with a pipeline counts as stalled or
not, whichever is nearer.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from minipar.plan.memory import GIB, memory
from minipar.plan.table import PlanRow
from minipar.plan.time.stalls import NEARLY_FULL
from minipar.plan.time.step_time import message_bytes, step_time
from tests.support.plan_rows import Judged, published, ultrascale

NAMES = ("unfused", "loss", "launch", "nic", "latency", "gather", "cross", "busy", "stall")


def with_numbers(rows: Sequence[PlanRow], **numbers: Any) -> list[PlanRow]:
    """The rows on software with other numbers."""
    clusters: dict[Any, Any] = {}
    for row in rows:
        if id(row.cluster) not in clusters:
            clusters[id(row.cluster)] = replace(
                row.cluster, software=replace(row.cluster.software, **numbers))
    return [row._replace(cluster=clusters[id(row.cluster)]) for row in rows]


def error(row: PlanRow, seconds: float) -> float:
    """The logarithm of predicted over measured seconds, with stalls or without."""
    ways = (False, True) if row.layout.pp > 1 else (False,)
    return min((math.log(step_time(row.cluster, row.model, row.layout, way).seconds / seconds)
                for way in ways), key=abs)


def fit_times(judged: Sequence[Judged], names: Sequence[str] = NAMES) -> dict[str, float]:
    """The fitted numbers, by name, searched from those of the software on.

    None becomes more than 20 times larger or smaller, and the NIC's share at most 1.
    """
    done = [j for j in judged if j.seconds]
    rows, seconds = [j.row for j in done], [j.seconds for j in done]
    start = [math.log(getattr(rows[0].cluster.software, name)) for name in names]

    def errors(x: Sequence[float]) -> list[float]:
        changed = with_numbers(rows, **dict(zip(names, map(math.exp, x))))
        return [error(row, measured) for row, measured in zip(changed, seconds)]

    most = [0.0 if name == "nic" else value + 3 for name, value in zip(names, start)]
    from scipy.optimize import least_squares  # not at the top: half a second
    x = least_squares(errors, start, loss="cauchy", f_scale=0.1, diff_step=1e-3,
                      bounds=([value - 3 for value in start], most)).x
    return dict(zip(names, map(math.exp, x)))


def fit_memory(judged: Sequence[Judged]) -> tuple[float, float]:
    """(bytes of a run without a model, factor of activations) with the least median error."""
    done = [j for j in judged if j.seconds]
    plain = with_numbers([j.row for j in done], kept=1.0)
    kinds = [memory(row.cluster, row.model, row.layout) for row in plain]
    parts = [(sum(found.values()) - found["activations"], found["activations"], j.gib * GIB)
             for found, j in zip(kinds, done)]

    def wrong(choice: tuple[float, float]) -> float:
        base, kept = choice
        return median(abs(math.log((base + rest + kept * activations) / measured))
                      for rest, activations, measured in parts)
    return min(((base * GIB / 10, kept / 50) for base in range(8) for kept in range(48, 75)),
               key=wrong)


def count_stalls(judged: Sequence[Judged]) -> dict[tuple[str, int], tuple[int, int]]:
    """(stalled, all) runs for each row of the software's tables: {(name of the table, nodes): …}.

    Only runs count in which the row alone decides whether they stall: no pipeline in nearly full
    memory, and no small messages.
    """
    found: dict[tuple[str, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for j in judged:
        c, model, e = j.row.cluster, j.row.model, j.row.layout
        usual, stalled = (step_time(c, model, e, way).seconds for way in (False, True))
        name = "stalled_alone" if e.pp == 1 else \
            "stalled_ddp" if e.kind == "ddp" and e.dp > 1 else "stalled"
        rows = [nodes for nodes, _ in getattr(c.software, name) if c.nodes >= nodes]
        if (j.seconds is None or not rows or e.tp >= 4 * c.per_node
                or stalled < 1.3 * usual            # which of the two it was is not clear
                or e.pp > 1 and j.found.memory_gb * GIB > NEARLY_FULL * c.usable
                or name == "stalled" and message_bytes(model, e) < c.software.stalls_from):
            continue
        count, num = found[name, max(rows)]
        is_stalled = abs(math.log(stalled / j.seconds)) < abs(math.log(usual / j.seconds))
        found[name, max(rows)] = count + is_stalled, num + 1
    return dict(found)


def fit_products() -> dict[str, float]:
    """The efficiency of products of each group of published runs that has the least worst error.

    Of groups with many rows, the least median error.
    """
    groups = defaultdict(list)
    for j in published():
        if j.row.columns["group"] != "gpt-oss":             # nothing was fitted to it
            groups[j.row.columns["cluster"]].append(j)
    best = {}
    for name, of in groups.items():
        rows, seconds = [j.row for j in of], [j.seconds for j in of]
        measure = median if len(of) > 20 else max

        def wrong(product, rows=rows, seconds=seconds, measure=measure) -> float:
            changed = with_numbers(rows, product=product)
            return measure(abs(math.expm1(error(row, s))) for row, s in zip(changed, seconds))
        best[name] = min((k / 200 for k in range(60, 190)), key=wrong)
    return best


if __name__ == "__main__":
    half, _ = ultrascale()
    for name, value in fit_times(half).items():
        print(f"{name} = {value:.3g}")
    base, kept = fit_memory(half)
    print(f"memory_base = {base:.3g}\nkept = {kept:.3g}")
    for (name, nodes), (count, num) in sorted(count_stalls(half).items()):
        print(f"{name} from {nodes} nodes on: {count} of {num}")
    for group, product in fit_products().items():
        print(f"{group}: product = {product:g}")
