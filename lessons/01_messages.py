"""Lesson 01. Messages: why did it hang?

A message of n bytes takes  α + n β  seconds: the latency α, and β seconds for each byte, which is
1 / bandwidth.  It also takes two ranks: a send without a matching receive may block for ever.  Such
a program may still end while its messages are small, because MPI buffers small messages (*eager*).
Large messages are handed over (*rendezvous*): the send blocks until the receive is posted.

    python lessons/01_messages.py          mpirun -n 4 python lessons/01_messages.py

Programs that hang run on a small simulated cluster inside rank 0, also under mpirun.  There a
deadlock ends with a message that says which rank waits for which.
"""

from functools import partial
from pathlib import Path

import numpy as np
from support.bug_zoo import ZOO
from support.kept_trace import stop_trace
from support.kit import Lesson, Row

from minipar.comm import Cluster, Communicator, Deadlock
from minipar.comm.cost import fit
from minipar.launcher import launch
from minipar.viz import TracedRun, draw_space_time, waits_of

SIZES = [8 * 4**k for k in range(9)]        # bytes: 8 … 512 Ki
LARGE, REPEATS, EAGER = 1 << 22, 20, 64


def ping_pong(comm: Communicator, num_bytes: int) -> float:
    """The shortest of several one-way times between ranks 0 and 1, in seconds; 0 on other ranks."""
    if comm.rank > 1:
        return 0.0
    sent, back = np.arange(num_bytes // 8, dtype=np.float64), np.empty(num_bytes // 8)
    best = np.inf
    for _ in range(REPEATS):
        start = comm.now()
        if comm.rank == 0:
            comm.send(sent, dest=1)
            comm.recv(back, source=1)
        else:
            comm.recv(back, source=0)
            comm.send(back, dest=0)
        best = min(best, (comm.now() - start) / 2)
    assert np.array_equal(back, sent), "what came back is not what was sent"
    return best


def ring_of_sends(comm: Communicator, num_elements: int = 2000) -> None:
    """Send to the right, then receive from the left: no rank ever gets to its receive."""
    mine, theirs = np.full(num_elements, float(comm.rank)), np.empty(num_elements)
    work = int(2e5 * (comm.rank + 1))           # FLOPs: 2 µs, 4 µs, 6 µs at 1e11 FLOP/s
    comm.report_compute("compute", work, 0, 0.0)
    comm.send(mine, (comm.rank + 1) % comm.size)
    comm.recv(theirs, (comm.rank - 1) % comm.size)


def ring_of_sendrecvs(comm: Communicator, num_elements: int = 2000) -> None:
    """The same with both halves posted at once: it ends in whatever order the ranks arrive."""
    mine, theirs = np.full(num_elements, float(comm.rank)), np.empty(num_elements)
    comm.report_compute("compute", int(2e5 * (comm.rank + 1)), 0, 0.0)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    comm.sendrecv(mine, right, theirs, left)
    assert np.all(theirs == left)


def report_of(cluster: Cluster, program) -> str:
    """The cluster's report on a program that fails; empty if the program ends."""
    try:
        cluster.run(program)
    except (Deadlock, ValueError) as error:
        return str(error).replace(f"{Path(__file__).parent}/", "")
    return ""


def hang_safely(lesson: Lesson) -> None:
    """Run the ring that hangs, its fix, the eager limit and the bug zoo on 3 simulated ranks."""
    hung, mended = Cluster(3, trace=True), Cluster(3, trace=True)
    report = report_of(hung, ring_of_sends)
    assert report.count("waits to send to") == 3
    lesson.say("Three ranks in a ring: each **sends** to the right, then **receives** from the "
               f"left.\n```\n{report}\n```\nNo rank reaches its receive. `comm.sendrecv` posts "
               "both halves at once:")
    _, seconds = mended.run(ring_of_sendrecvs)
    lesson.table([Row("the ring with sendrecv: 6 µs of computing + α + n β",
                      6 + (mended.latency + 16000 / mended.bandwidth) * 1e6, seconds * 1e6, "µs"),
                  Row("messages", 3, mended.trace.num_sent())], found="simulated")
    waits = waits_of(report, [rank.clock for rank in hung.ranks])
    lesson.picture(lambda path: draw_space_time(
        path, TracedRun("Every rank sends first: deadlock", hung.trace, waits),
        TracedRun("The same ring with sendrecv", mended.trace)))

    rows = []
    for num_bytes in (8, EAGER - 8, EAGER, 8 * EAGER):
        program = partial(ring_of_sends, num_elements=num_bytes // 8)
        ends = [not report_of(Cluster(3, eager=limit), program) for limit in (0, EAGER)]
        assert ends == [False, num_bytes < EAGER]
        rows.append((f"{num_bytes} bytes", *("ends" if end else "hangs" for end in ends)))
    lesson.say("Why did it work yesterday? MPI libraries buffer messages below an eager limit, "
               "here 64 bytes. The unsafe ring passes every test until its arrays grow beyond it:")
    lesson.grid(["the ring of sends", "rendezvous", "eager below 64 bytes"], rows)

    for program in ZOO:
        report = report_of(Cluster(3), program).partition("\nEvery send")[0]
        lesson.say(f"Bug zoo, `{program.__name__}`:\n```\n{report or 'It ends: fixed.'}\n```")


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__, 2)
    comm.start_trace()
    times = [ping_pong(comm, size) for size in SIZES]
    pair, cluster = stop_trace(comm), getattr(comm, "cluster", None)
    is_partner = comm.rank < 2
    rows = [Row("ping-pong: messages sent by this rank", is_partner * len(SIZES) * REPEATS,
                pair.num_sent()),
            Row("ping-pong: bytes sent by this rank", is_partner * sum(SIZES) * REPEATS,
                pair.bytes_sent(), "B")]
    large = ping_pong(comm, LARGE)
    if comm.rank == 0:
        (alpha, bandwidth), worst = fit(SIZES, times)
        beta = 1 / bandwidth
        if cluster:
            rows += [Row("α fitted: the cluster's latency", cluster.latency * 1e6, alpha * 1e6,
                         "µs"),
                     Row("β fitted: 1 / its bandwidth", 1e9 / cluster.bandwidth, beta * 1e9,
                         "ns/B")]
        rows.append(Row(f"α + n β for n = {LARGE:,}, not in the fit",
                        (alpha + LARGE * beta) * 1e6, large * 1e6, "µs", rule="≈"))
        lesson.say(f"Ping-pong of {SIZES[0]} to {SIZES[-1]:,} bytes between ranks 0 and 1 gives "
                   f"**α = {alpha * 1e6:.2f} µs, β = {beta * 1e9:.3g} ns/B** "
                   f"({bandwidth / 1e9:.3g} GB/s): below n = α / β = {alpha * bandwidth:,.0f} "
                   "bytes latency decides, above it bandwidth. "
                   + ("" if cluster else f"On real ranks the line is only an approximation, up to "
                      f"{worst:.0%} off: caches, the eager limit and shared cores bend it."))
    lesson.table(rows, found=lesson.clock)
    ring_of_sendrecvs(comm)                 # on all ranks, also real ones
    if comm.rank == 0:
        hang_safely(lesson)
    lesson.takeaway("A message costs α + n β, and needs two ranks that agree on the order: post "
                    "the receive before you block in a send, or use sendrecv.")
    lesson.exercises(questions=[
        "Fix the four programs in lessons/support/bug_zoo.py, each with a line or two.",
        "Let even ranks send first and odd ranks receive first. How many rounds does the ring take "
        "for even p, and for odd p?",
        "From which EAGER on does a ring of 512 bytes end? Why is a larger limit no fix?"])


if __name__ == "__main__":
    launch(main)
