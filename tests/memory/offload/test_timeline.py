"""Copies in virtual time: hidden behind computation, or the bound; on real ranks, traced."""

from contextlib import nullcontext
from functools import partial

import numpy as np

from minipar.autograd import backward
from minipar.backend.mapped_file import MappedFile
from minipar.comm import Cluster
from minipar.comm.simulated.copy_stream import COPY_IN, COPY_OUT, copy_streams
from minipar.comm.simulated.links import Link
from minipar.launcher import simulate
from minipar.memory.offload.activations import OffloadActivations
from minipar.nn import GPT, GPTConfig


def timed(bandwidth, ahead=2, num_layers=6):
    """Virtual seconds of computation alone and of a step with its copies; the trace; the offload.
    """
    config = GPTConfig(64, context=32, num_layers=num_layers, num_heads=4, width=64)
    ids = np.zeros((4, 32), np.int64)
    cluster = Cluster(1, trace=True, flops_per_second=1e10, memory_bandwidth=1e12)

    def main(comm, offloads):
        model = GPT(config).initialize()
        offload = OffloadActivations(MappedFile().empty, model.parameters(),
                          *copy_streams(comm, Link(0.0, bandwidth)), ahead=ahead)
        with offload.recording() if offloads else nullcontext():
            backward(model.loss(ids, ids))
        return offload
    _, alone = simulate(partial(main, offloads=False), cluster)
    (offload,), together = simulate(partial(main, offloads=True), cluster)
    return alone, together, cluster.trace.named_spans(), offload


def test_copies_hide_behind_computation_if_the_link_is_fast():
    alone, together, spans, offload = timed(1e10)
    assert alone <= together <= 1.02 * alone
    for name, num in ((COPY_OUT, offload.num_out), (COPY_IN, offload.num_in)):
        copies = [span for span in spans if span.name == name]
        assert len(copies) == num
        assert all(a.end <= b.start for a, b in zip(copies, copies[1:]))    # one after the other


def test_a_slow_link_is_the_bound():
    bandwidth = 2e7
    alone, together, spans, offload = timed(bandwidth)
    copies = (offload.bytes_out + offload.bytes_in) / bandwidth
    assert copies > 3 * alone
    assert 0.9 * copies <= together <= copies + 0.2 * alone     # a few out while others come in
    for name in (COPY_OUT, COPY_IN):
        lane = [span for span in spans if span.name == name]
        busy = sum(span.end - span.start for span in lane)
        assert busy > 0.95 * (lane[-1].end - lane[0].start)


def test_a_copy_out_begins_when_the_operation_that_makes_it_has_ended():
    def main(comm):
        out, _ = copy_streams(comm, Link(1.0, 8.0))
        first = out.copy(np.ones(2), np.zeros(2))
        comm.spend("exp forward", 5.0)
        second = out.copy(np.ones(4), np.zeros(4))
        assert (first.end, second.end) == (8.0, None)           # 5 + 1 + 16 / 8; not yet begun
        out.wait(second)
        assert comm.now() == second.end == 8.0 + 1 + 4
        out.release_finished()
        assert not out.under_way
    Cluster(1).run(main)


def test_real_copies_are_traced():
    class Comm:
        trace, world_rank = type("Trace", (), {"spans": []})(), 3
    out, back = copy_streams(Comm())
    out.wait(out.copy(np.ones(3), dest := np.zeros(3)))
    back.copy(dest, np.zeros(3))
    (rank, name, start, end), (*_, last) = Comm.trace.spans
    assert (rank, name) == (3, COPY_OUT) and start <= end <= last
