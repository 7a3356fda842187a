"""`minipar plan`: a model's fastest layout that fits in the memory of a cluster, and why.

    minipar plan --model llama3-70b --cluster 8x8:h100 --batch 1024 --sequence 4096
    minipar plan --model gpt3-175b --cluster 128x8:a100 --batch 1536 --explain tp=8,pp=8,dp=16
    minipar plan --model layers=4,width=64,heads=4,vocab=256,gated=0 --cluster 1x4:cpu_core \\
        --batch 16 --sequence 64 --emit run.toml
    minipar plan --rows layouts.csv --cluster 1x8:h100 > predicted.csv
    minipar plan --page calculator.html

Nothing runs: formulas, tested on published runs, give seconds and bytes (docs/pages/planning.md).
"""

import io
from dataclasses import dataclass, replace
from pathlib import Path

from .. import viz
from ..atomic_files import write_text
from ..launcher import errors_as_usage
from ..nn import GPTConfig
from ..plan.calculator import PAGE, TITLE, page_data
from ..plan.cluster import ClusterSpec, read_cluster
from ..plan.layout import AXES, Layout, layout_fault, parse_layout
from ..plan.memory import GIB, memory, total
from ..plan.minipar_formulas.parts import queue_note
from ..plan.models import given_model, model_flops, num_parameters
from ..plan.reasons import binding, changes, parts
from ..plan.search import Candidate, best_of_meshes, frontier, predict, search
from ..plan.table import predicted_columns, read_rows, write_rows
from ..plan.time.stalls import StallRange
from ..train.config import TrainConfig
from ..train.config_file import to_toml
from ..train.option import Beside, CommandOptions, option, out_file
from ..train.setup.gpt_sizes import options_of_gpt, sizes_of_gpt
from ..units import time_unit
from ..viz.colors import RED
from ..viz.pages.page import write_page
from .tables import Column, Output, Shown, Table

SHOWN = 8               # meshes in the table
OF_A_PLAN = ("model", "batch", "sequence", "explain", "emit", "pictures", "page")
POINTS, BARS = 8, 5     # layouts in the picture of time against memory; in the bars of memory


def main(options: "Options", output: Output) -> None:
    """Print the plan, or the predicted rows.  Raises UsageError."""
    if options.page is not None:
        output.file(options.page, write_page, PAGE, TITLE, page_data(), {"red": RED})
        if options.model is None:
            return
    with errors_as_usage():
        if options.rows is not None:
            print_rows(options.rows, read_cluster(options.cluster), output)
            return
        cluster, model, batch = given(options)
        if options.explain:
            chosen = explained(options.explain, cluster, model, batch)
            found = [chosen]
        else:
            found = ranked(cluster, model, batch, output)
            chosen = found[0]
    say(output, cluster, model, chosen)
    output.file(options.emit, write_text, to_toml(config_of(model, chosen.layout)) + (
        f"# minipar simulate --config FILE --vocabulary {model.vocab_size} reads it, too\n"))
    if options.pictures is not None:
        draw(options.pictures, cluster, model, found, output)


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    model: str | None = option(
        None, "a name, as llama3-70b, or layers=N,width=N,heads=N,vocab=N and kv_heads, ffn, "
        "gated, tied, sequence, experts, top_k, expert_width", metavar="NAME|SIZES",
        needs=Beside("batch", "N", "is planned for the sequences of a step"))
    cluster: str = option("1x8:h100", "N nodes of M GPUs, h100, a100 … or a TOML file; after a "
                          "slash a software of it, as 8x8:h100/megatron-core, or minipar itself, "
                          "8x8:h100/minipar", metavar="NxM:GPU")
    batch: int | None = option(None, "sequences of a step", least=1)
    sequence: int | None = option(None, "tokens of a sequence", least=1)
    explain: str = option("", "a layout instead of the best: dp=8,tp=8,microbatch=2,kind=zero1 …",
                          metavar="NAME=N,…")
    emit: Path | None = out_file("write the layout as a file for `minipar train --config`")
    pictures: Path | None = option(None, "draw time against memory, tp against pp, and memory by "
                                   "kind", metavar="DIR")
    page: Path | None = out_file("write a calculator of time and memory, for a browser (.html)")
    rows: Path | None = option(
        None, "predict the layouts of a CSV file; write them as CSV to stdout", metavar="FILE",
        without=tuple([Beside(key, "", "has models and layouts of its own") for key in OF_A_PLAN]))


def print_rows(path: Path, cluster: ClusterSpec, output: Output) -> None:
    """Write the rows of a file with their predictions.  Raises ValueError and OSError."""
    rows = [*predicted_columns(read_rows(path, cluster))]
    if output.as_json:
        made = Table.of("rows", *(rows[0] if rows else ["model"]))
        for row in rows:
            made.add(*row.values())
        output.table(made)
    else:
        text = io.StringIO()
        write_rows(rows, text)
        output.document(text.getvalue().rstrip("\n"))


def given(options: Options) -> tuple[ClusterSpec, GPTConfig, int]:
    """The cluster, the model and the batch.  Raises ValueError."""
    if options.model is None or options.batch is None:
        raise ValueError("plan needs a model and a batch: --model llama3-8b --batch 256, or "
                         "--rows FILE")
    return (read_cluster(options.cluster), given_model(options.model, options.sequence),
            options.batch)


def ranked(cluster: ClusterSpec, model: GPTConfig, batch: int, output: Output) -> list[Candidate]:
    """Print and return the layouts that fit, the fastest first.  Raises ValueError for none."""
    found, tried = search(cluster, model, batch)
    if not found:
        raise ValueError(f"none of {tried:,} layouts fits in {gib(cluster.usable)} of GPU memory: "
                         "take more GPUs, or a smaller model or sequence")
    output.text(f"{len(found):,} of {tried:,} layouts fit.  The fastest of each mesh:")
    output.table(ranking(cluster, model, best_of_meshes(found)[:SHOWN]))
    return found


def explained(text: str, cluster: ClusterSpec, model: GPTConfig, batch: int) -> Candidate:
    """The prediction of a layout that the user names.  Raises ValueError if it cannot run."""
    layout = parse_layout(text, Layout(batch=batch))
    layout = replace(layout, sp=layout.sp and layout.tp > 1)
    if layout.v > 1 and layout.schedule == "1f1b":
        layout = replace(layout, schedule="interleaved")
    if fault := layout_fault(layout, model, cluster.num_gpus):
        raise ValueError(f"--explain {text}: {fault}")
    return predict(cluster, model, layout)


def config_of(model: GPTConfig, layout: Layout) -> TrainConfig:
    """The configuration that trains the model with the layout; data and steps are the defaults."""
    axes = {axis: getattr(layout, axis) for axis in AXES if getattr(layout, axis) > 1}
    in_pipeline = layout.pp > 1
    return TrainConfig().updated(
        **options_of_gpt(sizes_of_gpt(model)), batch=layout.batch, strategy=layout.kind,
        remat=layout.remat,
        mesh=",".join(f"{axis}={size}" for axis, size in (axes or {"dp": 1}).items()),
        accumulate=1 if in_pipeline else layout.microbatches,
        schedule=layout.schedule if in_pipeline else None, offload=layout.offload,
        microbatches=layout.microbatches if in_pipeline else None,
        virtual_stages=layout.v if layout.v > 1 else None,
        sequence_parallel=layout.sp and layout.tp > 1)


def ranking(cluster: ClusterSpec, model: GPTConfig, found: list[Candidate]) -> Table:
    """The candidates with their seconds, tokens per second, MFU and memory."""
    stalls = any(candidate.stalls.share for candidate in found)
    made = Table.of("plan", "layout", Column("step", "s"), Column("tokens/s per GPU"),
                    Column("MFU"), Column("memory", "B"),
                    *[Column("or", "s: usual, stalled; share", is_text=True)] * stalls)
    for candidate in found:
        tokens = candidate.layout.batch * model.context
        rate = tokens / candidate.seconds / cluster.num_gpus
        mfu = model_flops(model, tokens) / candidate.seconds / cluster.num_gpus / cluster.rate
        other, does_stall, share = other_case(candidate.stalls)
        case = f"{other}: {share} {'' if does_stall else 'do not '}stall"
        made.add(str(candidate.layout), seconds(candidate.seconds), Shown(rate, f"{rate:,.0f}"),
                 Shown(mfu, f"{mfu:.1%}"), Shown(candidate.num_bytes, gib(candidate.num_bytes)),
                 *[Shown([*candidate.stalls], case if candidate.stalls.share else "")] * stalls)
    return made


def say(output: Output, cluster: ClusterSpec, model: GPTConfig, chosen: Candidate) -> None:
    """Print a layout's step by part, its memory, what limits it, and what changes would cost."""
    layout = chosen.layout
    output.text("", f"{count(num_parameters(model))} parameters on {cluster.num_gpus:,} GPUs "
                f"({cluster.title}; {cluster.software.name}): {layout}")
    fits = chosen.num_bytes <= cluster.usable
    output.text(f"A step takes {seconds(chosen.seconds).text} and {gib(chosen.num_bytes)} of "
                f"{gib(cluster.usable)}{'' if fits else ': it does not fit'}."
                f"{stall_text(chosen.stalls)}")
    output.text(binding(cluster, model, layout, chosen.num_bytes).capitalize() + ".")
    if cluster.software.is_minipar and (note := queue_note(layout)):
        output.text(note)
    output.table(parts_table(cluster, model, layout))
    output.table(memory_table(cluster, model, layout))
    output.table(changes_table(cluster, model, chosen))


def other_case(stalls: StallRange) -> tuple[str, bool, str]:
    """The case that is not predicted: its seconds, whether it stalls, and its share of the runs."""
    does_stall = stalls.seconds == stalls.usual
    other = stalls.stalled if does_stall else stalls.usual
    share = stalls.share if does_stall else 1 - stalls.share
    return seconds(other).text, does_stall, f"{share:.0%}"


def stall_text(stalls: StallRange) -> str:
    """The other duration of a step, if runs like it were seen to stall."""
    if not stalls.share:
        return ""
    other, does_stall, share = other_case(stalls)
    what, did = ("stalls", "did") if does_stall else ("does not stall", "did not")
    return f"  Or {other}, if it {what}: {share} of measured runs like it {did}."


def parts_table(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> Table:
    """Seconds of the step by part, on the slowest rank."""
    made = Table.of("seconds of a step", "part", Column("time", "s"), "share")
    found = {name: part for name, part in parts(cluster, model, layout).items() if part > 1e-9}
    for name, part in sorted(found.items(), key=lambda item: -item[1]):
        share = part / sum(found.values())
        made.add(name, seconds(part), Shown(share, f"{share:.1%}"))
    return made


def memory_table(cluster: ClusterSpec, model: GPTConfig, layout: Layout) -> Table:
    """Bytes of the fullest rank by kind."""
    kinds = memory(cluster, model, layout)
    made = Table.of("memory of the fullest rank", "kind", Column("size", "B"))
    for name, size in [*kinds.items(), ("all, with the context", total(cluster, kinds))]:
        if size:
            made.add(name, Shown(size, gib(size)))
    return made


def changes_table(cluster: ClusterSpec, model: GPTConfig, chosen: Candidate) -> Table:
    """What the step would cost with one choice changed."""
    made = Table.of("one other choice", "change", "step", Column("because", is_text=True))
    for change in changes(cluster, model, chosen.layout):
        relative = change.seconds / chosen.seconds - 1
        made.add(change.what, Shown(relative, f"{relative:+.1%}"), change.reason)
    return made


def seconds(value: float) -> Shown:
    """Seconds, in the unit that reads best."""
    unit, per_second = time_unit(value)
    return Shown(value, f"{value * per_second:.3g} {unit}")


def gib(num_bytes: float) -> str:
    """Bytes as GiB, the unit of GPUs' memory; few bytes as MiB."""
    return f"{num_bytes / GIB:.3g} GiB" if num_bytes > GIB else f"{num_bytes / 2**20:.3g} MiB"


def count(number: float) -> str:
    """A number of parameters: 70.6 B, 124 M."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def draw(folder: Path, cluster: ClusterSpec, model: GPTConfig, found: list[Candidate],
         output: Output) -> None:
    """Write the three pictures."""
    meshes = best_of_meshes(found)
    tokens = found[0].layout.batch * model.context / cluster.num_gpus
    points = {label(x.layout): (x.num_bytes, tokens / x.seconds, 0.0)
              for x in [*frontier(found)[:POINTS], *meshes[:BARS]]}
    panel = viz.ParetoPanel("layouts that fit", "tokens per second and GPU", points,
                            size="memory of the fullest rank")
    costs: dict[tuple[int, int], float] = {}
    for x in meshes:
        pair = x.layout.tp, x.layout.pp
        costs[pair] = min(costs.get(pair, x.seconds), x.seconds)
    bars = {axes_text(x.layout): memory(cluster, model, x.layout) for x in meshes[:BARS]}
    output.file(folder / "frontier.png", viz.draw_pareto, [panel], "Time against memory")
    output.file(folder / "tp_pp.png", viz.draw_choices, costs, ("tp", "pp"),
                "Step time over the best, by tp and pp")
    output.file(folder / "memory.png", viz.draw_stacked_bars, bars, {},
                "Memory of the fullest rank", "bytes", cluster.usable)


def axes_text(layout: Layout) -> str:
    """The axes of a layout alone: dp8 tp4."""
    names = [f"{axis}{getattr(layout, axis)}" for axis in AXES if getattr(layout, axis) > 1]
    return " ".join(names) or "dp1"


def label(layout: Layout) -> str:
    """A layout's name in the picture of time against memory: dp8 tp4 fsdp b2."""
    more = [layout.kind] * (layout.dp > 1) + ["remat"] * (layout.remat != "none")
    more += ["offload"] * bool(layout.offload)
    return " ".join([axes_text(layout), *more, f"b{layout.microbatch}"])
