"""A short run on simulated ranks, told step by step: loss, time, and what each rank sent and kept.

A milestone compares two versions of one program by such runs.  In float64, with ring
collectives and in virtual time, two correct versions agree up to rounding
(`school/course/milestones/version.py`).
"""

import argparse
import shlex
from collections.abc import Callable
from typing import NamedTuple

from ...comm import Cluster, Communicator
from ...comm.collectives import gather_object
from ...launcher import simulate
from ...memory.temporaries import StepLedger
from ..check import checked
from ..command_line import add_arguments, parse_config
from ..config import TrainConfig
from ..loop import take_step
from ..start import start_run
from ..tasks import make_task


class ObservedStep(NamedTuple):
    """A step of the whole run.  The lists have an entry for each rank."""

    loss: float
    seconds: float                              # the virtual time at its end, on rank 0
    sent: list[dict[str, tuple[int, int]]]      # (bytes, messages) by collective
    peaks: list[int]                            # bytes alive at the fullest moment


def config_of(options: str) -> TrainConfig:
    """The configuration that `options` of `minipar train` give, all in one text."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return checked(parse_config(parser.parse_args(shlex.split(options))))


def run_observed(config: TrainConfig, num_ranks: int, tell: Callable[[ObservedStep], None]) -> None:
    """Train on simulated ranks; rank 0 calls `tell` after each step."""
    def main(comm: Communicator) -> None:
        state = start_run(comm, config, make_task(config))
        state.memory.ledger = ledger = StepLedger()
        for number in range(config.run.steps):
            comm.start_trace()
            ledger.forget_peaks()
            with state.memory.recording():
                loss = take_step(state, number)
            sent: dict[str, tuple[int, int]] = {}
            trace = comm.stop_trace()
            for _, _, num_bytes, label, *_ in trace.messages if trace else ():
                so_far, count = sent.get(label or "send", (0, 0))
                sent[label or "send"] = so_far + num_bytes, count + 1
            found = gather_object(comm, (sent, ledger.peak))
            if found is not None:
                tell(ObservedStep(loss, comm.now(), [sent for sent, _ in found],
                                  [peak for _, peak in found]))
    # Without a chooser "auto" means rings, whatever the size.
    simulate(main, Cluster(num_ranks, chooser=None))
