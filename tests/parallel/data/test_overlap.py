"""Messages hide behind computation, in virtual time: buckets of DDP, prefetched gathers of FSDP.

A device computes a GPT's forward in F and its backward in B; the link takes M for all gradients,
chosen about equal to B.  Times of a simulated cluster are exact, so they may be asserted.
"""

from functools import partial

import numpy as np
import pytest

from minipar.comm import Cluster
from minipar.comm.collectives import all_reduce
from minipar.launcher import simulate
from minipar.nn import GPT, GPTConfig
from minipar.parallel.data.ddp import DistributedDataParallel
from minipar.parallel.strategy import Strategy
from minipar.parallel.wire_formats.wire import Wire
from minipar.parallel.zero.fsdp import FullyShardedDataParallel

CONFIG = GPTConfig(64, context=32, num_layers=6, num_heads=2, width=32)
BATCH, FLOPS, SMALL_MB = 4, 1e9, 0.015
PSI = GPT(CONFIG).num_parameters()


class RingWire(Wire):
    """The links here are not those that "auto" reckons with."""

    all_reduce = staticmethod(partial(all_reduce, algorithm="ring"))


def train(make, p, num_bytes_per_second, num_steps=1):
    """Virtual seconds of the last of several forwards and of its backward, on the slowest rank."""
    def main(comm):
        model = GPT(CONFIG).initialize()
        ids = np.random.default_rng(comm.rank).integers(0, 64, (BATCH, CONFIG.context + 1))
        strategy = make(model, comm)
        for _ in range(num_steps):
            for slab in strategy.slabs:
                slab.zero_grad()
            start = comm.now()
            with strategy.forward_context():
                loss = model.loss(ids[:, :-1], ids[:, 1:], 100)
            middle = comm.now()
            strategy.backward(loss)
        return middle - start, comm.now() - middle
    cluster = Cluster(p, bandwidth=num_bytes_per_second, latency=1e-6, flops_per_second=FLOPS,
                      memory_bandwidth=1e15)
    return tuple(map(max, zip(*simulate(main, cluster)[0])))


FORWARD, BACKWARD = train(Strategy, 1, 1.0)


def link(p):
    """Bytes per second with which a ring all-reduce of all gradients takes as long as backward."""
    return 2 * 4 * PSI * (p - 1) / p / BACKWARD


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.one_in(2)
def test_ddp_reaches_most_of_the_bound(p):
    """(F + B + M) / T is at least 0.85 of (F + B + M) / (F + max(B, M)), and M = B."""
    make = partial(DistributedDataParallel, bucket_mb=SMALL_MB, first_bucket_mb=SMALL_MB,
                   wire=RingWire())
    seconds = sum(train(make, p, link(p)))
    assert FORWARD + BACKWARD <= seconds <= (FORWARD + BACKWARD) / 0.85


def test_one_bucket_hides_nothing():
    """It is whole only when backward is over: F + B + M."""
    seconds = sum(train(partial(DistributedDataParallel, first_bucket_mb=25.0, wire=RingWire()),
                        2, link(2)))
    assert seconds == pytest.approx(FORWARD + 2 * BACKWARD, rel=1e-3)


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.one_in(2)
def test_prefetch_hides_all_gathers_but_the_first(p):
    """The second step knows the order of uses; a gather takes less than the block before it."""
    reduced = BACKWARD / 2                      # reduce-scatters take half of an all-reduce
    computed = FORWARD + BACKWARD + reduced
    shown = sum(train(FullyShardedDataParallel, p, link(p), num_steps=2)) - computed
    alone = sum(train(partial(FullyShardedDataParallel, prefetch=False), p, link(p),
                      num_steps=2)) - computed
    assert alone > 0.8 * BACKWARD               # two gathers of nearly everything
    assert shown < 0.15 * alone
