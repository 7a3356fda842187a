"""`minipar schedule NAME`: a pipeline's schedule, predicted, simulated and drawn, without a run.

    minipar schedule 1f1b -p 4 -m 8 --png 1f1b.png
    minipar schedule interleaved -p 4 -m 8 --virtual-stages 2 --weight 0.5
    minipar schedule --from-csv mine.csv

Times are seconds that all layers of one rank take for one microbatch.  A rank's virtual stages
share these seconds, so that all schedules do the same work.
"""

from dataclasses import dataclass
from math import inf
from pathlib import Path

from .. import viz
from ..atomic_files import write_text
from ..comm.simulated.links import Link
from ..launcher import UsageError, errors_as_usage
from ..parallel.cost import pipelines as predict
from ..parallel.pipeline.schedule.actions import Placement, Schedule
from ..parallel.pipeline.schedule.csv import from_csv, to_csv
from ..parallel.pipeline.schedule.metrics import Bubble, bubble, num_messages, peak_memory
from ..parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from ..parallel.pipeline.schedule.schedules import placement_of
from ..parallel.pipeline.schedule.simulate import FREE_LINK, Times, simulate, simulate_until
from ..parallel.pipeline.schedule.timeline import Timeline
from ..parallel.pipeline.schedule.validate import find_fault
from ..train.option import Beside, CommandOptions, option, out_file, perfetto, picture, ranks
from ..units import in_bytes, time_unit
from .tables import Output, Shown, Table

MOST_ACTIONS, MOST_LANES = 1_000_000, 256
LEAST, MOST = 1e-15, 1e15       # seconds or bytes


def main(options: "Options", output: Output) -> None:
    """Print the costs and the timeline of a schedule, and write the files that the options name.

    Raises UsageError for a schedule that does not exist or work, or a file that cannot be written.
    """
    check_numbers(options)
    schedule, placement = read(options.from_csv) if options.from_csv else make(options)
    p = len(schedule)
    if options.png is not None and p > MOST_LANES:
        raise UsageError(f"--png has room for {MOST_LANES} ranks, not for {p:,}: leave it out, or "
                         "take fewer ranks")
    v = max(1, len(placement) // p)
    m = 1 + max(action.microbatch for row in schedule for action in row)
    whole = Times(options.forward, options.input, options.weight)       # of a rank's layers
    times = whole.shared(v)
    kept = None if options.activation_bytes is None else options.activation_bytes / v
    title = f"{options.name or options.from_csv.name}, {p} rank{'s' * (p > 1)}, " \
            f"{m} microbatch{'es' * (m > 1)}" + f", {v} stages on each rank" * (v > 1)
    fault = find_fault(schedule, placement)
    if fault is not None:
        output.file(options.png, viz.draw_pipeline, simulate_until(
            fault, schedule, times, placement), title, kept, fault)
        raise UsageError(f"{title}: {fault.sentence}")
    # a message of one byte, so that its transfer takes 1 / bandwidth
    link = Link(options.latency, 1 / options.transfer if options.transfer else inf)
    timeline = simulate(schedule, times, placement, link, message_bytes=1)
    known = [formula(options.name, p, m, times, v) if link == FREE_LINK else None
             for formula in (predict.makespan, predict.bubble)]
    flights = [predict.in_flight(options.name, rank, p, m, v) for rank in range(p)]
    if options.group_size is not None:
        flights = [None] * p
    split = any(action.kind == "I" for row in schedule for action in row)
    output.table(table(title, timeline, *known, flights, num_messages(placement, m),
                        predict.lower_bound(placement, m, times, split), kept))
    output.console.print(viz.pipeline_in_terminal(timeline, output.console.width))
    output.file(options.csv, write_text, to_csv(schedule))
    output.file(options.png, viz.draw_pipeline, timeline, title, kept)
    output.file(options.html, viz.write_schedule_page, options.name, p, m,
                v if options.name and SCHEDULES[options.name].any_stages else 2, whole)
    output.file(options.perfetto, viz.write_perfetto, timeline.as_trace())


A_TABLE = Beside("from_csv", "", "says which schedule it is")


def seconds(default: float, text: str) -> float:
    """An option that is a time in seconds."""
    return option(default, text, metavar="SECONDS")


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    name: str | None = option(None, "its name", is_positional=True, without=(A_TABLE,),
                              choices="parallel.pipeline.schedule.registry:SCHEDULES")
    ranks: int = ranks(4, "-p", without=(A_TABLE,))
    microbatches: int = option(8, "number of microbatches", short="-m", least=1,
                               without=(A_TABLE,))
    virtual_stages: int | None = option(
        None, "stages on each rank", metavar="V", without=(A_TABLE,),
        default_text="2 where there may be several")
    group_size: int | None = option(
        None, "microbatches in a group that goes through a rank's stages together, for "
        "interleaved", default_text="number of ranks", without=(A_TABLE,))
    forward: float = seconds(1.0, "time for the forward of one microbatch on a rank's layers")
    input: float = seconds(1.0, "the same for the gradient of the input")
    weight: float = seconds(1.0, "the same for the gradient of the weights")
    latency: float = seconds(0.0, "latency of a message")
    transfer: float = seconds(0.0, "time that a message keeps the ports of both ranks busy")
    activation_bytes: float | None = option(None, "activations of a microbatch on a rank",
                                            default_text="microbatches are counted")
    from_csv: Path | None = option(None, "read your own schedule: a line for each rank, cells "
                                   "like 2F0", metavar="FILE")
    csv: Path | None = out_file("write the schedule in the same format")
    png: Path | None = picture("the timeline")
    html: Path | None = option(None, "write a page with sliders for schedule, counts and times",
                               metavar="FILE", without=(Beside(
                                   "from_csv", "", "shows schedules by name"),))
    perfetto: Path | None = perfetto()


def check_numbers(options: Options) -> None:
    """Raise UsageError unless times and sizes are plausible numbers."""
    for name in ("forward", "input", "weight", "latency", "transfer", "activation_bytes"):
        value = options.get(name)
        if value and not LEAST <= value <= MOST:
            raise UsageError(f"--{name.replace('_', '-')} {value:g}: give 0, or a number from "
                             f"{LEAST:g} to {MOST:g}")
    if not options.forward + options.input + options.weight:
        raise UsageError("--forward 0 --input 0 --weight 0: something has to take time")


def read(path: Path) -> tuple[Schedule, Placement]:
    """The schedule in a file.  Raises UsageError if there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no text: give a table of cells like 2F0") from None
    with errors_as_usage(f"{path}: "):
        schedule = from_csv(text)
        return schedule, placement_of(schedule)


def make(options: Options) -> tuple[Schedule, Placement]:
    """The schedule by name.  Raises UsageError if there is none, or if it is too long."""
    name, p, m = options.name, options.ranks, options.microbatches
    if name is None:
        raise UsageError(f"which schedule? Choose from {', '.join(SCHEDULES)}, or give --from-csv "
                         "FILE")
    at_least = 2 * p if SCHEDULES[name].is_quadratic else 0
    count = 3 * p * max(m, at_least) * (options.virtual_stages or 2)
    if count > MOST_ACTIONS:
        raise UsageError(f"-p {p} -m {m}: up to {count:,} actions are too many, give less than "
                         f"{MOST_ACTIONS:,}")
    with errors_as_usage():
        return make_schedule(name, p, m, options.virtual_stages, options.group_size)


def table(title: str, timeline: Timeline, makespan: float | None, ideal: Bubble | None,
          flights: list[float | None], messages: int, bound: float,
          activation_bytes: float | None) -> Table:
    """The predictions of formulas beside the simulation's numbers; "–" without a formula."""
    made = Table.of(title, "figure", "predicted", "simulated")
    found, took = bubble(timeline), timeline.makespan()
    ranks = range(timeline.num_ranks)
    unit, scale = time_unit(took)

    def show(value: float | None, form: str, factor: float = 1) -> Shown | None:
        return None if value is None else Shown(value * factor, format(value * factor, form))

    made.add(f"makespan in {unit}", show(makespan, ",.4g", scale), show(took, ",.4g", scale))
    made.add("  no schedule on these stages beats", show(bound, ",.4g", scale), Shown(None, ""))
    made.add("bubble, of the total", show(ideal and ideal.of_total, ".1%"),
             show(found.of_total, ".1%"))
    made.add("bubble, of the ideal", show(ideal and ideal.of_ideal, ".1%"),
             show(found.of_ideal, ".1%"))
    for rank in sorted({0, ranks[-1]}):
        made.add(f"most microbatches in flight, rank {rank}", show(flights[rank], ".0f"),
                 show(peak_memory(timeline, rank), ".0f"))
        if activation_bytes is not None:
            in_flight = flights[rank]
            expected = None if in_flight is None else in_flight * activation_bytes
            counted = peak_memory(timeline, rank, activation_bytes)
            made.add(f"most activations, rank {rank}",
                     expected and Shown(expected, in_bytes(expected)),
                     Shown(counted, in_bytes(counted)))
    made.add("messages", messages, len(timeline.messages))
    return made
