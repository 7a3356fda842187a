"""A short run on simulated ranks, told step by step: loss, time, and what each rank sent and kept.

For comparing two versions of the same program: in float64, with rings, and in virtual time they
agree to the last bits.
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
    """A step: its loss, when it ended in virtual seconds, and for each rank what it sent and kept.

    Sent is (bytes, messages) by collective; the peak is in bytes.
    """

    loss: float
    seconds: float
    sent: list[dict[str, tuple[int, int]]]
    peaks: list[int]


def config_of(options: str) -> TrainConfig:
    """The configuration that options of `minipar train` give, as one text."""
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
