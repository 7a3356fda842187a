"""`minipar collective OPERATION`: one collective on a simulated cluster, counted and drawn.

    minipar collective all_reduce --algorithm ring -p 8 --bytes 1MB --png ring.png

All counts come from runs.  Messages are counted in the trace.  Rounds and bytes on the critical
path come from replays of the trace in which only latency, or only bandwidth, takes time.  Combined
bytes come from one more run, in which only combining takes time.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from .. import viz
from ..comm import Cluster, Communicator, Trace
from ..comm.algorithms import ALGORITHMS
from ..comm.collectives import operations
from ..comm.cost import Cost, Network, choose, network_of_cluster, predict, seconds_on
from ..comm.simulated.links import Link, Links
from ..comm.simulated.replay import replay
from ..launcher import UsageError
from ..train.option import REQUIRED, CommandOptions, option, out_file, perfetto, picture, ranks
from ..units import in_bytes, time_unit
from .tables import Output, Shown, Table

LINKS = Links(within=Link(1e-6, 1e11), between=Link(1e-5, 1e10))    # if there are several nodes
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
DTYPE = np.dtype(np.float32)
MOST_MEMORY = 1 << 30       # bytes of all ranks' vectors
MOST_ARROWS, MOST_LINES = 512, 16      # messages and ranks for which a diagram has room


def main(options: "Options", output: Output) -> None:
    """Run the collective, print its cost and its timeline, write the files asked for.

    Raises UsageError for a run or a file that cannot be made.
    """
    operation, p, nodes = options.operation, options.ranks, options.nodes
    if p % nodes:
        raise UsageError(f"-p {p} --nodes {nodes}: give as many ranks for every node")
    cluster = new_cluster(p, nodes, trace="replay")
    n = num_elements(options.bytes, p)
    network = network_of_cluster(cluster, range(p))
    algorithm = find(operation, options.algorithm, p, n, network)
    predicted, expected = None, None
    if ALGORITHMS[operation][algorithm].rounds:
        counts = operations.table_of_pieces(p, n) if operation == "all_to_all" else None
        predicted = predict(operation, algorithm, p, n, DTYPE.itemsize, counts,
                            ranks_per_node=p // nodes)
        expected = seconds_on(operation, algorithm, p, n * DTYPE.itemsize, network)
    _, took = cluster.run(program(operation, algorithm, n))
    trace = cluster.trace
    title = f"{operation} by {algorithm}, {p} rank{'s' * (p > 1)}"
    title += f" on {nodes} nodes" * (nodes > 1)
    title += f", {in_bytes(n * DTYPE.itemsize)}" * (operation != "barrier")
    counted = count(trace, p, nodes, program(operation, algorithm, n, Combining))
    output.table(cost_table(title, predicted, counted, expected, took))
    output.console.print(viz.timeline_in_terminal(trace, output.console.width, p) if trace.messages
                  else "no messages")
    output.file(options.png, draw, trace, title, p)
    output.file(options.html, write_page, operation, algorithm, p, nodes, n)
    output.file(options.perfetto, viz.write_perfetto, trace)


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    operation: str = option(REQUIRED, "its name", is_positional=True,
                            choices="comm.algorithms:ALGORITHMS")
    algorithm: str = option("auto", "its name")
    ranks: int = ranks(8, "-p")
    bytes: str = option("1MB", "size of the whole vector of float32: 4096, 64KiB, 1MB …",
                        metavar="N")
    nodes: int = option(1, "number of nodes, with 1 µs and 100 GB/s within, 10 µs and 10 GB/s "
                        "between them", least=1, default_text="1 node, with 5 µs and 10 GB/s")
    png: Path | None = picture("it")
    html: Path | None = out_file("write a page that steps through its rounds (at most "
                                 f"{MOST_LINES} ranks)")
    perfetto: Path | None = perfetto()


def write_page(path: Path, operation: str, algorithm: str, p: int, nodes: int, n: int) -> None:
    """Write a page that shows the rounds one by one, on a vector of one chunk a rank.

    Raises UsageError for too many ranks.
    """
    if p > MOST_LINES:
        raise UsageError(f"--html shows at most {MOST_LINES} ranks, not {p}: give -p {MOST_LINES}")
    rounds = viz.record_rounds(operation, algorithm, p, chunk_bytes=max(1, n * DTYPE.itemsize // p),
                         ranks_per_node=p // nodes)
    viz.write_rounds_page(path, rounds, title=f"{operation} by {algorithm}, {p} ranks")


def new_cluster(p: int, nodes: int, **options) -> Cluster:
    """A cluster of `p` ranks, as many on each of the `nodes` nodes."""
    links = {"links": LINKS} if nodes > 1 else {}
    return Cluster(nodes=nodes, devices_per_node=p // nodes, **{**links, **options})


def num_elements(text: str, p: int) -> int:
    """The number of float32 in `text` bytes.  Raises UsageError for a wrong or too large size."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?((?:[kmg]i?)?)b?", text.lower())
    size = float(found[1]) * UNITS[found[2]] if found else -1
    if size < 0 or size % DTYPE.itemsize:
        raise UsageError(f"--bytes {text}: give a multiple of {DTYPE.itemsize}, like 4096, 64KiB "
                         "or 1MB")
    if size * p > MOST_MEMORY:
        raise UsageError(f"--bytes {text}: {p:,} ranks would hold {in_bytes(size * p)}: give at "
                         f"most {MOST_MEMORY // p // DTYPE.itemsize * DTYPE.itemsize:,} bytes")
    return int(size) // DTYPE.itemsize


def find(operation: str, algorithm: str, p: int, n: int, network: Network) -> str:
    """The algorithm of that name, or the one that "auto" takes.  Raises UsageError."""
    known = [*ALGORITHMS[operation], "auto"]
    if algorithm not in known:
        raise UsageError(f"unknown algorithm {algorithm!r} of {operation}: choose from "
                         f"{', '.join(known)}")
    return choose(operation, p, n * DTYPE.itemsize, network) if algorithm == "auto" else algorithm


class Combining(np.ndarray):
    """An array that reports every combination to its rank, as work on its bytes."""

    def __array_finalize__(self, origin) -> None:
        self.comm: Communicator | None = getattr(origin, "comm", None)

    def __array_ufunc__(self, ufunc, method, *inputs, out, **options) -> np.ndarray:
        result = getattr(ufunc, method)(*map(np.asarray, inputs), out=np.asarray(out[0]), **options)
        self.comm.report_compute("combine", 0, result.nbytes, 0.0)
        return out[0]

    def __array_function__(self, function, types, args, options):
        made = super().__array_function__(function, types, args, options)
        if isinstance(made, np.ndarray):            # such as a concatenation
            made = made.view(Combining)
            made.comm = self.comm
        return made


def program(operation: str, algorithm: str, n: int,
            kind: type[np.ndarray] = np.ndarray) -> Callable[[Communicator], None]:
    """The program of each rank: `operation` on a vector of n ones, an array of type `kind`."""
    def main(comm: Communicator) -> None:
        vector = np.ones(n, DTYPE).view(kind)
        if kind is Combining:
            vector.comm = comm
        operations.call(operation, algorithm, comm, vector)
    return main


def count(trace: Trace, p: int, nodes: int, combining: Callable[[Communicator], None]) -> Cost:
    """The cost of the run in `trace`; `combining` is the same program with Combining arrays."""
    def ideal(**speeds: float) -> Cluster:
        return new_cluster(p, nodes, **{"latency": 0, "bandwidth": inf, "links": None, **speeds})
    return Cost(replay(trace, ideal(latency=1)), replay(trace, ideal(bandwidth=1)),
                trace.num_sent(), ideal(memory_bandwidth=1).run(combining)[1])


def cost_table(title: str, predicted: Cost | None, counted: Cost, expected: float | None,
               took: float) -> Table:
    """The predicted costs beside the counted ones; times use the cluster's links.

    `predicted` and `expected` are None for an algorithm whose entry in ALGORITHMS has no rounds.
    """
    table = Table.of(title, "figure", "predicted", "counted", "check")
    for what, name in (("rounds", "rounds"), ("messages of all ranks", "messages"),
                       ("bytes on the critical path", "num_bytes"),
                       ("bytes combined on the critical path", "reduced")):
        before, after = getattr(predicted, name, None), getattr(counted, name)
        table.add(what, before and Shown(before, f"{before:,.0f}"), Shown(after, f"{after:,.0f}"),
                  "equal" if before == after else "≠" if predicted else "not predicted")
    unit, scale = time_unit(took)
    table.add(f"time in {unit}", expected and Shown(expected * scale, f"{expected * scale:,.4g}"),
              Shown(took * scale, f"{took * scale:,.4g}"), "")
    return table


def draw(path: Path, trace: Trace, title: str, num_ranks: int) -> None:
    """Draw a space-time diagram if there is room for its arrows, else a timeline."""
    if len(trace.messages) > MOST_ARROWS or num_ranks > MOST_LINES:
        viz.draw_timeline(path, trace, title, num_ranks=num_ranks)
    else:
        viz.draw_space_time(path, viz.TracedRun(title, trace, num_ranks=num_ranks))
