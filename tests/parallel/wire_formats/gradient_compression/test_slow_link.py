"""In virtual time: α + nβ of each wire; a step of the demo's model on two nodes far apart."""

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import barrier
from minipar.comm.simulated.links import Link, Links
from minipar.launcher import metered
from minipar.parallel.registry import make_strategy
from minipar.parallel.wire_formats.gradient_compression.powersgd import PowerSGD
from minipar.parallel.wire_formats.gradient_compression.signs import Signs
from minipar.parallel.wire_formats.gradient_compression.top_k import TopK
from minipar.parallel.wire_formats.wire import UNCOMPRESSED
from minipar.train.check import checked
from minipar.train.config import TrainConfig
from minipar.train.loop import take_step
from minipar.train.start import start_run
from minipar.train.tasks import make_task
from tests.support.given_gradients import GivenGradients

SGD = {"optimizer": "sgd", "momentum": 0.0, "clip": 0.0}


def seconds(between=12.5e6, **options):
    """Virtual seconds of the second step; the first one may send gradients in full."""
    config = checked(TrainConfig().updated(mesh="dp=4", batch=16, steps=2, **options))
    task = make_task(config)

    def body(comm):
        state = start_run(comm, config, task)
        take_step(state, 0)
        begin = comm.now()
        take_step(state, 1)
        return comm.now() - begin
    links = Links(Link(5e-6, 1e10), Link(5e-4, between))
    return max(Cluster(nodes=2, devices_per_node=2, links=links, flops_per_second=1e12).run(
        metered(body))[0])


def test_a_step_is_five_times_faster():
    """What is sent is 1/10 and less; what is left is computation, and latency."""
    slow = seconds()
    fast = {"PowerSGD": seconds(reduce_dtype="powersgd", rank=8, start=1),
            "DGC": seconds(reduce_dtype="dgc", **SGD), "signs": seconds(reduce_dtype="signs"),
            "1-bit Adam": seconds(reduce_dtype="onebit_adam", start=1, **SGD)}
    assert all(slow > 5 * each for each in fast.values()), (slow, fast)


def test_on_a_fast_link_there_is_little_to_gain():
    """10 Gbit/s: computation and the latency of two messages are all there is."""
    slow = seconds(1.25e9)
    assert slow < 1.5 * seconds(1.25e9, reduce_dtype="powersgd", rank=8, start=1)


ROWS, COLUMNS, P, ALPHA, BETA = 64, 32, 4, 1e-3, 1e-6
NUMBERS = ROWS * COLUMNS


@pytest.mark.parametrize("wire, rounds, sent", [
    (lambda: UNCOMPRESSED, 2 * (P - 1), 2 * 4 * NUMBERS / P * (P - 1)),
    (lambda: PowerSGD(4, 0), 4 * (P - 1), 2 * 4 * 4 * (ROWS + COLUMNS) / P * (P - 1)),
    (lambda: TopK(0.125), P - 1, (P - 1) * NUMBERS / 8 * 8),
    (Signs, 2 * (P - 1), 2 * (P - 1) * (NUMBERS / P / 8 + 4))],
    ids=["dense", "PowerSGD", "top-k", "signs"])
def test_a_sum_takes_alpha_a_round_and_beta_a_byte(wire, rounds, sent):
    """On rings, as the page's table has it; computation takes no time here."""
    def body(comm):
        strategy = make_strategy("ddp", GivenGradients({"w": (ROWS, COLUMNS)}, np.float32), comm)
        [flat], own = strategy.flats, np.ones(NUMBERS, np.float32)
        barrier(comm)
        begin = comm.now()
        wire().of(flat).all_reduce(comm, own, out=own)
        return comm.now() - begin
    found = Cluster(P, latency=ALPHA, bandwidth=1 / BETA, chooser=None).run(body)[0]
    assert max(found) == pytest.approx(rounds * ALPHA + sent * BETA, rel=1e-9)
