"""Lesson 01: the line through the times, programs that hang, the eager limit, the bug zoo."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minipar.comm import Cluster, Communicator, Deadlock
from minipar.comm.cost import fit
from minipar.viz import TracedRun, draw_space_time, waits_of

from .bug_zoo import ZOO
from .kit import Lesson, Row

LARGE, EAGER = 1 << 22, 64                  # bytes
LESSONS = Path(__file__).parents[1]


def compare_with_library(lesson: Lesson, sizes: list[int], times: list[float],
                         line: tuple[float, float] | None, ping_pong: Callable,
                         send_first: Callable, at_once: Callable) -> None:
    """Say α and β, which the library fits to equal values; run what hangs on a small cluster."""
    comm = lesson.comm
    cluster = getattr(comm, "cluster", None)
    large = ping_pong(comm, LARGE)
    if line is None:                        # ranks other than 0
        lesson.table([])
    else:
        (latency, bandwidth), worst = fit(sizes, times)
        alpha, beta = line
        rows = [Row("α fitted by minipar.comm.cost.fit", alpha * 1e6, latency * 1e6, "µs"),
                Row("β fitted by it", beta * 1e9, 1e9 / bandwidth, "ns/B")
                ] if min(line) > 0 else []              # the library's are never negative
        if cluster:
            rows += [Row("α fitted: the cluster's latency", cluster.latency * 1e6, alpha * 1e6,
                         "µs"),
                     Row("β fitted: 1 / its bandwidth", 1e9 / cluster.bandwidth, beta * 1e9,
                         "ns/B")]
        rows.append(Row(f"α + n β for n = {LARGE:,}, not in the fit",
                        (alpha + LARGE * beta) * 1e6, large * 1e6, "µs", rule="≈"))
        lesson.say(f"Ping-pong of {sizes[0]} to {sizes[-1]:,} bytes between ranks 0 and 1 gives "
                   f"**α = {alpha * 1e6:.2f} µs, β = {beta * 1e9:.3g} ns/B** "
                   f"({bandwidth / 1e9:.3g} GB/s): below n = α / β = {latency * bandwidth:,.0f} "
                   "bytes latency decides, above it bandwidth. "
                   + ("" if cluster else f"On real ranks the line is only an approximation, up to "
                      f"{worst:.0%} off: caches, the eager limit and shared cores bend it."))
        lesson.table(rows, found=lesson.clock)
        hang_safely(lesson, send_first, at_once)


def report_of(cluster: Cluster, program: Callable[[Communicator], Any]) -> str:
    """The cluster's report on a program that fails; empty if the program ends."""
    try:
        cluster.run(program)
    except (Deadlock, ValueError) as error:
        return str(error).replace(f"{LESSONS}/", "").replace("support/", "")
    return ""


def hang_safely(lesson: Lesson, send_first: Callable, at_once: Callable) -> None:
    """Run the ring that hangs, its fix, the eager limit and the bug zoo on 3 simulated ranks."""
    def ring(way: Callable, comm: Communicator, num_elements: int = 2000) -> None:
        """Ranks compute for 2 µs, 4 µs and 6 µs at 1e11 FLOP/s, and pass an array on."""
        comm.report_compute("compute", int(2e5 * (comm.rank + 1)), 0, 0.0)
        theirs = way(comm, np.full(num_elements, float(comm.rank)))
        assert np.all(theirs == (comm.rank - 1) % comm.size)
    hung, mended = Cluster(3, trace=True), Cluster(3, trace=True)
    report = report_of(hung, partial(ring, send_first))
    assert report.count("waits to send to") == 3
    lesson.say("Three ranks in a ring: each **sends** to the right, then **receives** from the "
               f"left.\n```\n{report}\n```\nNo rank reaches its receive. `comm.sendrecv` posts "
               "both halves at once:")
    _, seconds = mended.run(partial(ring, at_once))
    lesson.table([Row("the ring with sendrecv: 6 µs of computing + α + n β",
                      6 + (mended.latency + 16000 / mended.bandwidth) * 1e6, seconds * 1e6, "µs"),
                  Row("messages", 3, mended.trace.num_sent())], found="simulated")
    waits = waits_of(report, [rank.clock for rank in hung.ranks])
    lesson.picture(lambda path: draw_space_time(
        path, TracedRun("Every rank sends first: deadlock", hung.trace, waits),
        TracedRun("The same ring with sendrecv", mended.trace)))

    rows = []
    for num_bytes in (8, EAGER - 8, EAGER, 8 * EAGER):
        program = partial(ring, send_first, num_elements=num_bytes // 8)
        ends = [not report_of(Cluster(3, eager=limit), program) for limit in (0, EAGER)]
        assert ends == [False, num_bytes < EAGER]
        rows.append((f"{num_bytes} bytes", *("ends" if end else "hangs" for end in ends)))
    lesson.say("Why did it work yesterday? MPI libraries buffer messages below an eager limit, "
               "here 64 bytes. The unsafe ring passes every test until its arrays grow beyond it:")
    lesson.grid(["the ring of sends", "rendezvous", "eager below 64 bytes"], rows)

    for zoo_program in ZOO:
        report = report_of(Cluster(3), zoo_program).partition("\nEvery send")[0]
        lesson.say(f"Bug zoo, `{zoo_program.__name__}`:\n```\n{report or 'It ends: fixed.'}\n```")
