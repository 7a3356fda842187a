"""`minipar train --device cuda`: where arrays live, and so where they are computed with.

    rank 0 ─ GPU 0      rank 2 ─ GPU 0        rank r has GPU r mod their number; simulated ranks,
    rank 1 ─ GPU 1      rank 3 ─ GPU 1        which are one process, share GPU 0

Parameters, gradients, states and batches live there.  Messages between ranks go through the host;
so do checkpoints, and what is shown at the end.
"""

import argparse

import numpy as np

from ...backend import Array
from ...comm import Communicator
from ...environment import launched
from ...launcher import UsageError

DEVICES = ("cpu", "cuda")


def add_device_argument(group: argparse._ArgumentGroup) -> None:
    """The option, in a group of a parser."""
    group.add_argument("--device", choices=DEVICES, default="cpu",
                       help="where arrays live: cuda takes CuPy, gives rank r GPU r mod their "
                            "number, and sends messages through the host (cpu)")


def check_device(options: argparse.Namespace) -> None:
    """Refuse a device that is not here, and what does not go with it.  Raises UsageError."""
    if options.device == "cpu":
        return
    for name, what in (("offload", "keeps arrays in a file of the host"),
                       ("memory_limit", "limits the memory of the host")):
        if getattr(options, name):
            raise UsageError(f"--{name.replace('_', '-')} {what}, but --device cuda has them on a "
                             "GPU: leave one of the two out")
    num_gpus()


def num_gpus() -> int:
    """How many CUDA GPUs there are, at least 1.  Raises UsageError if there is none, or no CuPy."""
    try:
        import cupy
    except ImportError as error:
        raise UsageError("--device cuda needs CuPy, which is not installed: pip install '.[cuda]', "
                         "or cupy-cuda12x for CUDA 12, or leave --device out") from error
    try:
        number = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise UsageError(f"--device cuda finds no GPU ({error}): leave --device out, or run where "
                         "there is one") from error
    if not number:
        raise UsageError("--device cuda finds no GPU: leave --device out, or run where there is "
                         "one")
    return number


def device_array(options: argparse.Namespace, comm: Communicator) -> Array:
    """An empty array where this rank computes, from now on: others are made as it is."""
    if options.device == "cpu":
        return np.empty(0)
    import cupy
    cupy.cuda.Device(comm.world_rank % num_gpus() if launched() else 0).use()
    return cupy.empty(0)
