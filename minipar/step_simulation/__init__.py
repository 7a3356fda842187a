"""One training step of a large model on thousands of simulated GPUs, by minipar's own code.

    step.py             the step: simulate_step(cluster, model, layout)
    rank_classes.py     ranks that do the same
    folded.py           a simulated cluster in which one rank stands for its class
    microbatches.py     microbatches that do the same
    device.py           seconds of an operation on a GPU
    fabric.py           links, ports and NICs
    offloading.py       AdamW in mixed precision; arrays in the host's memory
    rank_log.py         what a rank did
    report.py           speed, parts, memory
    failures.py         a long run that fails
    measure.py          this machine as a cluster

The simulation reads the cluster files of `minipar plan`, and runs what `minipar train` runs:
models, strategies, schedules, collectives.  It is built on `comm/simulated`, where ranks run any
program in virtual time, with numbers.  Here arrays have shapes only, and operations take the time
of a GPU.
"""

from .report import fullest, parts, speed
from .step import SimulatedStep, simulate_step

__all__ = ["SimulatedStep", "fullest", "parts", "simulate_step", "speed"]
