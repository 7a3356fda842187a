"""`minipar schedule NAME`: a pipeline's schedule, predicted, simulated and drawn, without a run.

    minipar schedule 1f1b -p 4 -m 8 --png 1f1b.png
    minipar schedule interleaved -p 4 -m 8 --virtual-stages 2 --weight 0.5
    minipar schedule --from-csv mine.csv

Times are seconds that all layers of one rank take for one microbatch.  A rank's virtual stages
share them, so that all schedules do the same work.
"""

import argparse
from math import inf
from pathlib import Path

from .. import viz
from ..atomic_files import write_text
from ..comm.simulated.topology import Link
from ..formulas import pipelines as predict
from ..launcher import UsageError
from ..parallel.pipeline.schedule.actions import Placement, Schedule
from ..parallel.pipeline.schedule.csv import from_csv, to_csv
from ..parallel.pipeline.schedule.metrics import Bubble, bubble, num_messages, peak_memory
from ..parallel.pipeline.schedule.registry import SCHEDULES, make_schedule
from ..parallel.pipeline.schedule.schedules import placement_of
from ..parallel.pipeline.schedule.simulate import FREE_LINK, Times, simulate, simulate_until
from ..parallel.pipeline.schedule.timeline import Timeline
from ..parallel.pipeline.schedule.validate import find_fault
from ..units import in_bytes, time_unit
from .tables import Output, Shown, Table

MOST_ACTIONS, MOST_LANES = 1_000_000, 256
LEAST, MOST = 1e-15, 1e15       # seconds or bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    free = " and ".join(name for name, entry in SCHEDULES.items() if entry.any_stages)
    parser.add_argument("name", nargs="?", help=", ".join(SCHEDULES))
    parser.add_argument("-p", "--ranks", type=int, help="number of ranks (4)")
    parser.add_argument("-m", "--microbatches", type=int, help="number of microbatches (8)")
    parser.add_argument("--virtual-stages", type=int, metavar="V",
                        help=f"stages on each rank (2 for {free})")
    parser.add_argument("--group-size", type=int, metavar="N",
                        help="microbatches in a group that goes through a rank's stages "
                             "together, for interleaved (number of ranks)")
    for kind, what in (("forward", "the forward"), ("input", "the gradient of the input"),
                       ("weight", "the gradient of the weights")):
        parser.add_argument(f"--{kind}", type=float, default=1.0, metavar="SECONDS",
                            help=f"time for {what} of one microbatch on a rank's layers (1)")
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS",
                        help="latency of a message (0)")
    parser.add_argument("--transfer", type=float, default=0.0, metavar="SECONDS",
                        help="time that a message keeps the ports of both ranks busy (0)")
    parser.add_argument("--activation-bytes", type=float, metavar="N",
                        help="activations of a microbatch on a rank (default: count microbatches)")
    parser.add_argument("--from-csv", metavar="FILE",
                        help="read your own schedule: a line for each rank, cells like 2F0")
    parser.add_argument("--csv", metavar="FILE", help="write the schedule in the same format")
    parser.add_argument("--png", metavar="FILE", help="draw the timeline (.png, .svg or .pdf)")
    parser.add_argument("--html", metavar="FILE",
                        help="write a page with sliders for schedule, counts and times")
    parser.add_argument("--perfetto", metavar="FILE",
                        help="write a trace for ui.perfetto.dev or chrome://tracing (.json)")


def main(options: argparse.Namespace, output: Output) -> None:
    """Print the costs and the timeline of a schedule, and write the files that the options name.

    Raises UsageError for a schedule that does not exist or work, or a file that cannot be written.
    """
    try:
        _run(options, output)
    except (ValueError, OSError) as error:
        raise UsageError.of(error) from error


def _run(options: argparse.Namespace, output: Output) -> None:
    check_numbers(options)
    schedule, placement = read(options) if options.from_csv is not None else make(options)
    p = len(schedule)
    if options.png is not None and p > MOST_LANES:
        raise ValueError(f"--png has room for {MOST_LANES} ranks, not for {p}: leave it out, or "
                         "take fewer ranks")
    v = max(1, len(placement) // p)
    m = 1 + max(action.microbatch for row in schedule for action in row)
    whole = Times(options.forward, options.input, options.weight)       # of a rank's layers
    times = whole.shared(v)
    kept = None if options.activation_bytes is None else options.activation_bytes / v
    title = f"{options.name or Path(options.from_csv).name}, {p} rank{'s' * (p > 1)}, " \
            f"{m} microbatch{'es' * (m > 1)}" + f", {v} stages on each rank" * (v > 1)
    fault = find_fault(schedule, placement)
    if fault is not None:
        if options.png is not None:
            done = simulate_until(fault, schedule, times, placement)
            output.text(f"wrote {viz.draw_pipeline(options.png, done, title, kept, fault)}")
        raise ValueError(f"{title}: {fault.sentence}")
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
    if options.csv is not None:
        output.text(f"wrote {write_text(options.csv, to_csv(schedule))}")
    if options.png is not None:
        output.text(f"wrote {viz.draw_pipeline(options.png, timeline, title, kept)}")
    if options.html is not None:
        page = viz.write_schedule_page(options.html, options.name, p, m,
                                       v if SCHEDULES[options.name].any_stages else 2, whole)
        output.text(f"wrote {page}")
    if options.perfetto is not None:
        output.text(f"wrote {viz.write_perfetto(options.perfetto, timeline.as_trace())}")


def check_numbers(options: argparse.Namespace) -> None:
    """Raise ValueError unless times and sizes are plausible numbers."""
    for name in ("forward", "input", "weight", "latency", "transfer", "activation_bytes"):
        value = getattr(options, name)
        if value and not LEAST <= value <= MOST:
            raise ValueError(f"--{name.replace('_', '-')} {value:g}: give 0, or a number from "
                             f"{LEAST:g} to {MOST:g}")
    if not options.forward + options.input + options.weight:
        raise ValueError("--forward 0 --input 0 --weight 0: something has to take time")


def read(options: argparse.Namespace) -> tuple[Schedule, Placement]:
    """The schedule of --from-csv.  Raises ValueError if other options name a schedule too."""
    for name in ("name", "ranks", "microbatches", "virtual_stages", "group_size"):
        if getattr(options, name) is not None:
            what = "a name" if name == "name" else f"--{name.replace('_', '-')}"
            raise ValueError(f"--from-csv says which schedule it is: leave out {what}")
    if options.html is not None:
        raise ValueError("the page of --html shows schedules by name only: give a name, or leave "
                         "out --html")
    try:
        text = Path(options.from_csv).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{options.from_csv} is no text: give a table of cells like 2F0") from None
    try:
        schedule = from_csv(text)
        return schedule, placement_of(schedule)
    except ValueError as error:
        raise ValueError(f"{options.from_csv}: {error}") from error


def make(options: argparse.Namespace) -> tuple[Schedule, Placement]:
    """The schedule by name.  Raises ValueError if there is none, or if it is too long."""
    if options.name is None:
        raise ValueError(f"which schedule? Choose from {', '.join(SCHEDULES)}, or give --from-csv "
                         "FILE")
    p = 4 if options.ranks is None else options.ranks
    m = 8 if options.microbatches is None else options.microbatches
    entry = SCHEDULES.get(options.name)
    at_least = 2 * p if entry and entry.is_quadratic else 0
    count = 3 * p * max(m, at_least) * (options.virtual_stages or 2)
    if count > MOST_ACTIONS:
        raise ValueError(f"-p {p} -m {m}: up to {count:,} actions are too many, give less than "
                         f"{MOST_ACTIONS:,}")
    return make_schedule(options.name, p, m, options.virtual_stages, options.group_size)


def table(title: str, timeline: Timeline, makespan: float | None, ideal: Bubble | None,
          flights: list[float | None], messages: int, bound: float,
          activation_bytes: float | None) -> Table:
    """The predictions of formulas beside the counts of the simulation; – without a formula."""
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
