"""The trace that a lesson leaves in out/NN/trace.json: the one with most events."""

from minipar.comm import Communicator
from minipar.comm.collectives import gather_trace
from minipar.comm.trace import Trace

_kept = Trace()


def keep(trace: Trace) -> Trace:
    """Remember a trace of all ranks, if it has more events than the one before; return it."""
    global _kept
    if num_events(trace) >= num_events(_kept):
        _kept = trace
    return trace


def num_events(trace: Trace) -> int:
    """Messages and spans of all ranks."""
    return len(trace.messages) + len(trace.spans)


def stop_trace(comm: Communicator) -> Trace:
    """Collective.  This rank's trace since comm.start_trace(); that of all ranks is kept."""
    trace = comm.stop_trace()
    keep(gather_trace(comm, trace) or Trace())
    return trace


def take() -> Trace:
    """The trace that was kept; forget it."""
    global _kept
    kept, _kept = _kept, Trace()
    return kept
