"""`minipar calibrate`: measure this machine, so that algorithm="auto" knows what is fastest on it.

    mpirun -n 4 python -m minipar calibrate

With --cluster FILE it writes a cluster file instead (simulate/cluster_file.py).  Without --cluster
it fits latency and bandwidth of the links, and times the algorithms of each operation that has
several algorithms.  It prints these times beside those of the cost model, and keeps the result for
later runs (comm/cost/calibration.py).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..comm import Communicator
from ..comm.algorithms import ALGORITHMS
from ..comm.cost import Fit, Network, candidates, choose, crossings, seconds_on
from ..comm.cost.calibration import BUILT_IN, Calibration, file_of, read, write
from ..comm.cost.choose import network_of
from ..comm.cost.measure import (
    LINK_SIZES,
    SIZES,
    comparable,
    measure_algorithms,
    measure_combining,
    measure_links,
    table_of,
)
from ..environment import launched, minipar_command
from ..launcher import UsageError, launch, on_first_rank
from ..train.option import CommandOptions, option, picture
from .simulate.cluster_file import write_cluster
from .tables import Column, Output, Shown, Table

OPERATIONS = [name for name in ALGORITHMS if name != "exscan"]     # exscan shares scan's algorithms


def main(options: "Options", output: Output) -> None:
    """Measure on all ranks.  Raises UsageError for senseless options.

    Without --cluster it also raises UsageError for fewer than two real ranks.
    """
    world = launched()
    if options.cluster is not None:
        write_cluster(options.cluster, options.rounds, output, world is not None)
        return
    if world is None or world.size < 2:
        raise UsageError("calibrate measures at least two real ranks: "
                         + minipar_command("calibrate", 4))
    if options.png is not None and options.largest < SIZES[1]:
        raise UsageError(f"--png draws curves over sizes, of which --largest {options.largest} "
                         f"leaves one: give at least {SIZES[1]} bytes, or leave --png out")
    launch(lambda comm: calibrate(comm, options, output))


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    rounds: int = option(25, "repetitions of all", least=1)
    largest: int = option(SIZES[-1], "the largest array that is tried", metavar="BYTES",
                          least=LINK_SIZES[1])
    png: Path | None = picture("the crossover curves")
    cluster: Path | None = option(None, "instead: write this machine as a cluster file for "
                                  "simulate and plan, and compare its predictions with real steps",
                                  metavar="FILE.toml")


def calibrate(comm: Communicator, options: Options, output: Output) -> None:
    """Collective.  Measure the links and the algorithms; print, draw and keep the results."""
    began, rounds = time.perf_counter(), options.rounds
    links = measure_links(comm, [n for n in LINK_SIZES if n <= options.largest], rounds)
    found = Calibration(*(fitted.link if fitted else known for fitted, known in
                          zip(links, (BUILT_IN.within, BUILT_IN.between))),
                        measure_combining(comm, num_rounds=rounds))
    network = network_of(comm)._replace(within=found.within, between=found.between,
                                        combining=found.combining)
    _say_links(output, links, found.combining)
    sizes = [n for n in SIZES if n <= options.largest] or [options.largest]
    measured = {}
    for operation in OPERATIONS:
        tried = [0] if operation == "barrier" else sizes
        if len(comparable(comm, operation)) > 1:
            measured[operation] = tried, measure_algorithms(comm, operation, tried, rounds)
    table = table_of(comm, measured)
    for operation, (tried, times) in measured.items():
        _print_times(output, operation, tried, times, comm.size, network)
        _print_crossings(output, model_crossings(operation, comm.size, tried, network),
                         table.rows[operation])
    path = file_of(comm.MPI)

    def keep() -> None:
        before, _ = read(path)
        try:
            write(path, found.with_tables(*(before.tables if before else ()), table))
        except OSError as error:
            raise UsageError(f"the calibration cannot be kept: {error}; MINIPAR_CACHE names "
                             "another folder", status=1) from error
    on_first_rank(comm, keep)
    output.text(f'{time.perf_counter() - began:.0f} s.  algorithm="auto" goes by this now: '
                  f"{path}")
    output.file(options.png, _draw, measured, comm.size, network, table.rows)


def model_crossings(operation: str, p: int, sizes: Sequence[int],
                    network: Network) -> list[tuple[int, str, str]]:
    """The sizes at which the model's choice changes, as `crossings` returns them."""
    return crossings(lambda num_bytes: choose(operation, p, num_bytes, network), sizes)


def predicted(operation: str, name: str, p: int, num_bytes: int, network: Network) -> float:
    """Seconds by the cost model; nan for an algorithm that the model does not know."""
    try:
        return seconds_on(operation, name, p, num_bytes, network)
    except ValueError:
        return math.nan


def _say_links(output: Output, links: Sequence[Fit | None], combining: float) -> None:
    table = Table.of("links", "link", Column("latency", "s"), Column("bandwidth", "B/s"),
                     Column("worst error", ""))
    for where, fitted in zip(("within a node", "between nodes"), links):
        if fitted:
            output.text(f"A message {where}: α = {fitted.link.latency * 1e6:.2f} µs, β = "
                        f"{_per_byte(fitted.link.bandwidth)}; a measured size is up to "
                        f"{fitted.worst:.0%} off that line.")
            table.add(where, fitted.link.latency, fitted.link.bandwidth, fitted.worst)
    output.text(f"Combining: γ = {_per_byte(combining)} on each rank.\n")
    table.add("combining", None, combining, None)
    output.table(table, show=False)


def _per_byte(bytes_per_second: float) -> str:
    return f"{1e9 / bytes_per_second:.3g} ns/B ({bytes_per_second / 1e9:.3g} GB/s)"


def _print_times(output: Output, operation: str, sizes: Sequence[int],
                 times: dict[str, list[float]], p: int, network: Network) -> None:
    table = Table.of(f"{operation} on {p} ranks: predicted | measured, in µs",
                     Column("bytes", "B"), *(Column(name, "s: predicted, measured")
                                             for name in times))
    for i, size in enumerate(sizes):
        fastest = min(times, key=lambda name, i=i: times[name][i])
        cells = []
        for name in times:
            model, took = predicted(operation, name, p, size, network), times[name][i]
            text = "–" if math.isnan(model) else _short(model * 1e6)
            cells.append(Shown((model, took), f"{text} | {_short(took * 1e6)}",
                               "bold green" if name == fastest else ""))
        table.add(size, *cells)
    output.table(table)


def _print_crossings(output: Output, model: list[tuple[int, str, str]], rows) -> None:
    by_model = [f"{name} from {at:,} B" for at, _, name in model]
    by_clock = [f"{names[0]} from {at:,} B" for at, names in rows]
    output.text(f"crossovers predicted: {', '.join(by_model) or 'none'}\n"
                  f"            measured: {', '.join(by_clock)}\n")


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _draw(path: Path, measured: dict, p: int, network: Network, rows: dict) -> None:
    from ..viz import CostCurves, draw_crossovers
    panels = []
    for operation, (sizes, times) in measured.items():
        if len(sizes) < 2:
            continue
        lines = {name: [(n, predicted(operation, name, p, n, network)) for n in sizes]
                 for name in times if name in candidates(operation, network)}
        dots = {name: list(zip(sizes, seconds)) for name, seconds in times.items()}
        panels.append(CostCurves(operation, lines, dots,
                             [(at, names[0]) for at, names in rows[operation] if at]))
    draw_crossovers(path, panels, f"Collectives on {p} ranks: model and measured")
