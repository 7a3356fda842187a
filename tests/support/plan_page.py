"""docs/pages/planning.md's tables, planning_rows.md, and their picture.

`python -m tests.support.plan_page` writes them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from minipar.atomic_files import write_text
from minipar.plan.time.step_time import step_time
from minipar.viz.colors import BLUE, DARK, ORANGE
from minipar.viz.figure import new_panels, save
from tests.support.plan_rows import SEED, SOURCES, Judged, published, scores, ultrascale

PAGES = Path(__file__).parents[2] / "docs" / "pages"
PAGE, ROWS = PAGES / "planning.md", PAGES / "planning_rows.md"
PICTURE = PAGES / "images" / "plan_rows.png"
BARS = {"time": ("time, median error", "≤ 8 %"),
        "fast_time": ("… of runs with an MFU over 30 %", "≤ 5 %"),
        "memory": ("memory, median error", "≤ 7.5 %"),
        "fit": ("measured runs that are said to fit", "≥ 95 %"),
        "failed": ("failed runs that are said not to fit, or to be slow", "≥ 85 %"),
        "regret": ("the chosen layout behind the best, median", "≤ 5 %"),
        "worst_regret": ("… the worst, up to 32 nodes", "≤ 30 %"),
        "rank": ("rank correlation of speed, median", "≥ 0.85"),
        "small_rank": ("… up to 16 nodes", "≥ 0.90")}
BAD = 0.15              # an error from which on a reason is looked for


def bars() -> Iterator[str]:
    """The scores of both halves beside what was asked for."""
    half, other = (scores(rows) for rows in ultrascale())
    yield "| | asked for | the fitted half | the other half |"
    yield "| --- | --- | --- | --- |"
    for name, (what, asked) in BARS.items():
        values = [getattr(found, name) for found in (half, other)]
        shown = [f"{x:.2f}" if "rank" in name else f"{x:.1%}" for x in values]
        yield f"| {what} | {asked} | {shown[0]} | {shown[1]} |"


def groups() -> Iterator[str]:
    """The errors of each group of the other published runs."""
    yield "| runs | software | product | rows | median error | worst | within 5 / 10 / 15 % |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    found: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for j in published():
        found[j.row.columns["group"], j.row.columns["cluster"]].append(j)
    for (group, cluster), rows in found.items():
        errors = [abs(j.error) for j in rows]
        near = " / ".join(str(sum(e <= most for e in errors)) for most in (0.05, 0.10, 0.15))
        yield (f"| {group} | `{cluster}` | {rows[0].row.cluster.software.product:g} | {len(rows)} "
               f"| {median(errors):.1%} | {max(errors):.0%} | {near} |")


def sources() -> Iterator[str]:
    """Where the rows come from."""
    yield from (f"* {group}: {text}." for group, text in SOURCES.items())


def rows_page() -> str:
    """The page of all rows, also those that the plan predicts badly."""
    lines = ["# Every run by which the plan is judged", "",
             "Made by `python -m tests.support.plan_page` for [planning](planning.md). An error is",
             f"predicted over measured, less 1; from {BAD:.0%} on a reason is given, where one is "
             "known.",
             f"F marks the half that nine numbers were fitted to (seed {SEED}).", "",
             "## The Ultra-Scale Playbook", ""]
    half, other = ultrascale()
    fitted = {id(j) for j in half}
    cells: dict[tuple[str, int], list[Judged]] = defaultdict(list)
    for j in half + other:
        cells[j.cell].append(j)
    for (model, nodes), rows in sorted(cells.items()):
        done = [j for j in rows if j.seconds]
        lines += [f"<details markdown=\"1\"><summary>{model} on {nodes} "
                  f"node{'s' * (nodes > 1)}: {len(done)} measured, {len(rows) - len(done)} failed, "
                  f"median error {median(abs(j.error) for j in done):.1%}</summary>", "",
                  "| | dp tp pp | microbatch × m | ZeRO | seconds | predicted | error | GiB "
                  "| predicted | |", "| --- " * 10 + "|"]
        lines += [ultrascale_line(j, id(j) in fitted) for j in sorted(rows, key=order)]
        lines += ["", "</details>", ""]
    lines += ["## Other published runs", ""]
    by_group: dict[str, list[Judged]] = defaultdict(list)
    for j in published():
        by_group[j.row.columns["group"]].append(j)
    for group, rows in by_group.items():
        lines += [f"<details markdown=\"1\"><summary>{group}: {len(rows)} rows</summary>", "",
                  "| run | layout | seconds | predicted | error | |", "| --- " * 6 + "|"]
        lines += [f"| {j.row.columns['run']} | {j.row.layout} | {j.seconds:.4g} | "
                  f"{j.found.seconds:.4g} | {j.error:+.1%} | {reason(j)} |" for j in rows]
        lines += ["", "</details>", ""]
    return "\n".join(lines)


def order(j: Judged) -> tuple[int, ...]:
    """The key by which the rows of a cell are sorted: the layout."""
    e = j.row.layout
    return e.dp, e.tp, e.pp, e.microbatch, e.microbatches


def ultrascale_line(j: Judged, is_fitted: bool) -> str:
    """The line of a run in a cell's table."""
    e, found = j.row.layout, j.found
    cells = ["F" * is_fitted, f"{e.dp} {e.tp} {e.pp}", f"{e.microbatch} × {e.microbatches}",
             str(int(e.kind == "zero1"))]
    if j.seconds:
        cells += [f"{j.seconds:.3g}", f"{found.seconds:.3g}", f"{j.error:+.0%}", f"{j.gib:g}",
                  f"{found.memory_gb:.1f}", reason(j)]
    else:
        cells += ["failed", f"{found.seconds:.3g}", "", "", f"{found.memory_gb:.1f}",
                  "" if found.fits else "does not fit"]
    return f"| {' | '.join(cells)} |"


def reason(j: Judged) -> str:
    """The reason of a large error, where one is known."""
    e, group = j.row.layout, j.row.columns.get("group")
    if abs(j.error) <= BAD:
        return ""
    if j.found.stalls.share:
        stalls = j.found.stalls
        other = stalls.usual if stalls.seconds == stalls.stalled else stalls.stalled
        if abs(other / j.seconds - 1) < abs(j.error):
            return "did not stall" if other == stalls.usual else "stalled"
    if group == "vtrain" and j.error < 0:
        return "tiny products, or an outlier" if e.tp >= 8 else "an outlier, or waiting"
    if group == "mosaic" and e.microbatch <= 2:
        return "memory nearly full"
    if group == "gpt-oss":
        return "experts: nothing was fitted to such runs"
    if group is None and e.pp == 1 and j.error < 0 and j.row.cluster.nodes >= 4:
        return f"lost {j.seconds - j.found.seconds:.2g} s without a pipeline"
    if group is None and e.tp > 8:
        return "tp across nodes"
    if group is None and j.error > 0:
        return "waits less for the host" if waits(j) else ""
    return ""


def waits(j: Judged) -> bool:
    """Whether the prediction waits for the host to launch kernels."""
    parts = step_time(j.row.cluster, j.row.model, j.row.layout).parts
    return parts["waiting for the host"] > 0.05 * j.found.seconds


def draw(path: Path = PICTURE) -> Path:
    """Draw predicted against measured seconds and memory of both halves; return the file."""
    figure, [[times, memories]] = new_panels(11, 5, "Runs of the Ultra-Scale Playbook: predicted "
                                             "against measured", columns=2, grid="both")
    for rows, color, name in zip(ultrascale(), (ORANGE, BLUE), ("fitted half", "other half")):
        done = [j for j in rows if j.seconds]
        times.loglog([j.seconds for j in done], [j.found.seconds for j in done], ".", color=color,
                     markersize=3.5, label=name)
        memories.loglog([j.gib for j in done], [j.found.memory_gb for j in done], ".", color=color,
                        markersize=3.5, label=name)
    for axes, label in ((times, "seconds of a step"), (memories, "GiB of a GPU")):
        low, high = axes.get_xlim()
        axes.plot([low, high], [low, high], color=DARK, linewidth=0.9, zorder=0)
        axes.set(xlabel=f"measured {label}", ylabel=f"predicted {label}")
    times.legend(frameon=False, fontsize=9)
    return save(figure, path)


def filled(text: str, **parts: Sequence[str]) -> str:
    """The text with new lines between the marks of each part."""
    for name, lines in parts.items():
        before, rest = text.split(f"<!-- {name} -->\n")
        text = "\n".join([before + f"<!-- {name} -->\n", *lines, "", rest[rest.index("<!-- end"):]])
    return text


def pages() -> dict[Path, str]:
    """Both pages as they should be."""
    return {PAGE: filled(PAGE.read_text("utf-8"), bars=[*bars()], groups=[*groups()],
                         sources=[*sources()]), ROWS: rows_page()}


if __name__ == "__main__":
    for path, text in pages().items():
        print(write_text(path, text))
    print(draw())
