"""A run in either world whose trace has all there is: computation, messages, overlap, a label."""

import numpy as np

from minipar.comm.collectives import all_reduce, gather_trace


def program(comm) -> None:
    """Compute, all-reduce, and two messages under way at once."""
    comm.report_compute("Linear forward", 10**6 * (comm.rank + 1), 0, 1e-6)
    all_reduce(comm, np.ones(1000), algorithm="ring")
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    incoming = [np.empty(10), np.empty(20)]
    requests = [comm.irecv(array, left, tag) for tag, array in enumerate(incoming)]
    requests += [comm.isend(np.ones(10 + 10 * tag), right, tag) for tag in (0, 1)]
    comm.report_compute("Linear backward", 10**6, 0, 1e-6)
    for request in requests:
        request.wait()


def trace_of(comm):
    """The whole trace of `program` on rank 0; None elsewhere."""
    comm.start_trace()
    program(comm)
    return gather_trace(comm, comm.stop_trace())


def check(trace, p: int) -> None:
    """Everything that `program` did is in it, each message with the times of both its ends."""
    assert trace.num_sent() == (2 * (p - 1) + 2) * p and len(trace.spans) == 2 * p
    assert {m.label for m in trace.select()} == {"all_reduce", ""}
    for m in trace.select():
        assert m.posted <= m.start <= m.end
        assert m.dest == (m.source + 1) % p
    assert trace.receives == []
