"""On two nodes with 100 Mbit/s between them: a step of the demo's model, in virtual time."""

from minipar.comm import Cluster
from minipar.comm.simulated.topology import Link, Links
from minipar.launcher import metered
from minipar.train.check import checked
from minipar.train.config import TrainConfig
from minipar.train.loop import take_step
from minipar.train.start import start_run
from minipar.train.tasks import make_task

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
