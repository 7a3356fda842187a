"""Requests of inference: when each waits and gets tokens, and its blocks of a paged cache.

    A  ▒▒▇▇▇▇▇▇              ▒ prompt   ▇ one token   ─ waits
    B  ──────▒▒▇▇▇▇          one column for each step, as wide as the step takes

    block 0 │▇▇▇▇▇▇▇▇▇▇▇          one row for each block, one column for each step; the colour is
          1 │  ▂▄▆▇▇▇▇▇▇▇          the request, the height how much of the block holds tokens;
          2 │▇▇▇ ▂▄▆▇▇             a black frame: several sequences share the block
            └─────────────▶ step

Bars below the blocks show the part of the slots in use that holds no token.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from ..colors import BLACK, BLUE, DARK, GREY, MANY, ORANGE, RED
from ..figure import legend_below, new_panels, save, tidy, whole_numbers
from .lanes import fill_lanes, name_lanes, time_axis

MOST_NAMES = 12         # in a legend
PROMPT, TOKEN, WAITS = "prompt, and the first token", "one more token", "waits"
LOOKS = {PROMPT: {"facecolor": ORANGE, "edgecolor": "white"},
         TOKEN: {"facecolor": BLUE, "edgecolor": "white"}, WAITS: {"facecolor": GREY}}
PLACES = {PROMPT: (-0.36, 0.72), TOKEN: (-0.36, 0.72), WAITS: (-0.05, 0.1)}
PREEMPTED = {"marker": "v", "linestyle": "", "color": RED}
TimedStep = tuple[float, float, Mapping[str, Any]]


def draw_request_timeline(path: str | Path, runs: Mapping[str, Sequence[TimedStep]],
                          arrivals: Mapping[str, float], title: str = "") -> Path:
    """Draw {way: [(begin, end, step), …]} in seconds; return the path written.

    A step is a record as `minipar replay` prints it; `arrivals` are the seconds at which each
    request comes.  Raises ValueError for a way without steps.
    """
    if not runs or not all(runs.values()):
        raise ValueError("expected at least one way of scheduling, each with at least one step")
    height = 0.7 + 0.3 * len(arrivals)
    figure, grid = new_panels(9, 1.2 + height * len(runs), title, len(runs), sharex=True)
    for axes, (name, steps) in zip(grid[:, 0], runs.items()):
        axes.set_title(name, loc="left", fontsize=10)
        _draw_requests(axes, steps, arrivals)
    time_axis(axes, 1.05 * max(steps[-1][1] for steps in runs.values()))
    handles = [Patch(label=kind, **look) for kind, look in LOOKS.items()]
    handles.append(Line2D([], [], color=BLACK, linewidth=1.2, label="all are answered"))
    if any(step.get("preempted") for steps in runs.values() for _, _, step in steps):
        handles.append(Line2D([], [], label="preempted", **PREEMPTED))
    legend_below(figure, handles, columns=5)
    return save(figure, path)


def _draw_requests(axes: Axes, steps: Sequence[TimedStep], arrivals: Mapping[str, float]) -> None:
    """Draw a lane for each request, and a black line where the last request is answered."""
    rows = {name: row for row, name in enumerate(arrivals)}
    ends, cells = dict(arrivals), []
    for begin, end, step in steps:
        for name, _, num_tokens, _ in step["scheduled"]:
            ends[name] = end
            is_prompt = num_tokens > 1 or name in step.get("admitted", ())
            cells.append((rows[name], PROMPT if is_prompt else TOKEN, begin, end))
        for name in step.get("preempted", ()):
            axes.plot(begin, rows[name] - 0.36, zorder=4, **PREEMPTED)
    waits = [(rows[name], WAITS, arrivals[name], ends[name]) for name in rows]
    fill_lanes(axes, waits + cells, LOOKS, PLACES)
    axes.axvline(max(ends.values()), color=BLACK, linewidth=1.2)
    name_lanes(axes, list(rows))
    axes.set_ylabel("request")


class BlockUse(NamedTuple):
    """A block in a step: the request that has it, the part that is filled, its sequences."""

    request: str
    filled: float
    num_sequences: int


def draw_block_pool(path: str | Path, steps: Sequence[Mapping[str, Any]], num_blocks: int,
                    block_size: int, title: str = "") -> Path:
    """Draw the steps of a replay (`minipar replay`); return the path written."""
    height = min(9.0, 1.6 + 0.28 * num_blocks)
    figure, [[pool], [waste]] = new_panels(
        min(16.0, 4.5 + 0.32 * len(steps)), height + 1.6, as_plain(title), rows=2, sharex=True,
        height_ratios=(height, 1.6))
    names = list(dict.fromkeys(entry[0] for step in steps for entry in step["scheduled"]))
    colors = {name: MANY[i % len(MANY)] for i, name in enumerate(names)}
    uses = uses_of_blocks(steps, block_size)
    _draw_blocks(pool, steps, uses, colors)
    pool.set(ylim=(num_blocks - 0.5, -0.5), ylabel=f"block of {block_size} tokens")
    whole_numbers(pool.yaxis)
    _draw_waste(waste, steps)
    handles: list[Any] = [Patch(facecolor=colors[name], label=as_plain(name)) for name in names]
    if len(names) > MOST_NAMES:
        handles = [Patch(facecolor="white", label=f"{len(names)} requests, a colour each "
                                                  "(colours repeat)")]
    if any(use.num_sequences > 1 for step in uses for use in step.values()):
        handles.append(Patch(facecolor="white", edgecolor=BLACK, linewidth=1.5, label="shared"))
    if any(step.get("preempted") for step in steps):
        handles.append(Line2D([], [], label="preempted", **PREEMPTED))
    legend_below(figure, handles, columns=8)
    return save(figure, path)


def as_plain(text: str) -> str:
    """The text with each $ escaped, so that matplotlib takes none for a formula."""
    return text.replace("$", r"\$")


def uses_of_blocks(steps: Sequence[Mapping[str, Any]],
                   block_size: int) -> list[dict[int, BlockUse]]:
    """For each step: {block: its BlockUse}, from the tables and the tokens that were computed."""
    computed: dict[str, int] = {}           # of each request, as of its last step
    found = []
    for step in steps:
        for name, start, num_tokens, _ in step["scheduled"]:
            computed[name] = start + num_tokens
        uses: dict[int, BlockUse] = {}
        for sequence, table in step["tables"].items():
            name = sequence if sequence in computed else sequence.rpartition(".")[0]
            for i, block in enumerate(table):
                filled = min(1.0, (computed[name] - i * block_size) / block_size)
                before = uses.get(block, BlockUse(name, 0.0, 0))
                uses[block] = BlockUse(before.request, max(before.filled, filled),
                                       before.num_sequences + 1)
        found.append(uses)
    return found


def _draw_blocks(axes: Axes, steps: Sequence[Mapping[str, Any]],
                 uses: Sequence[dict[int, BlockUse]], colors: Mapping[str, str]) -> None:
    for step, of_step in zip(steps, uses):
        for block, use in of_step.items():
            color, floor = colors[use.request], block + 0.42
            axes.bar(step["step"], -0.84, width=1, bottom=floor, color=color, alpha=0.22)
            axes.bar(step["step"], -0.84 * use.filled, width=1, bottom=floor, color=color)
            if use.num_sequences > 1:
                axes.bar(step["step"], -0.84, width=0.92, bottom=floor, fill=False,
                         edgecolor=BLACK, linewidth=1.4)
        if step.get("preempted"):
            axes.plot(step["step"], -0.5, clip_on=False, markersize=7, **PREEMPTED)
    axes.set_xlim(steps[0]["step"] - 0.5, steps[-1]["step"] + 0.5)


def _draw_waste(axes: Axes, steps: Sequence[Mapping[str, Any]]) -> None:
    axes.bar([step["step"] for step in steps],
             [1 - step["filled"] / step["slots"] if step["slots"] else 0.0 for step in steps],
             width=0.8, color=DARK)
    axes.set(ylabel="slots without\na token", xlabel="step")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    whole_numbers(axes.xaxis)
    tidy(axes, grid="y")
