"""Silence costs nothing but the sums: the work that is left is that of tensor parallelism."""

import numpy as np
import pytest

from minipar.autograd import Meter
from minipar.comm import Cluster
from tests.bench import runner
from tests.bench.gpt import make_batch
from tests.bench.on_ranks import tensor_parallel
from tests.bench.on_ranks.tensor_parallel import Silent, make_model
from tests.bench.simulators import SECONDS, schedule_row


def test_silent_ranks_send_nothing_and_compute_as_much():
    ids, targets = (array[:, :4] for array in make_batch(1, tensor_parallel.CONFIG))

    def body(comm):
        flops, losses = [], []
        for tp in (comm, Silent(comm)):
            with Meter().running() as meter:
                loss = make_model(tp).loss(ids, targets)
                loss.backward()
            flops.append(meter.total_flops())
            losses.append(loss.item())
            if tp is comm:
                comm.start_trace()
        trace = comm.stop_trace()
        assert not trace.messages and flops[0] == flops[1] > 0 and np.isfinite(losses).all()
    Cluster(2).run(body)


def test_rows():
    rows = tensor_parallel.report({"tp = 2": 2.0, "silent": 1.9, "annotated": 2.5, "alone": 3.0})
    assert [row.ratio for row in rows] == [0.95, 0.8, 1.5, pytest.approx(3 / 1.9)]
    assert rows[0].met and not rows[1].met


def test_schedules_are_timed():
    row = schedule_row("1f1b", 1, 4, 8)
    assert "64 actions" in row.ours and 0 < row.ratio * SECONDS < 5 and row.met


def test_every_name_has_a_measurement():
    for name in runner.MEASUREMENTS:
        assert callable(runner.function_of(name))
