"""`minipar train --device cuda`: the device that keeps the arrays and computes with them.

    rank 0 ─ GPU 0      rank 2 ─ GPU 0        rank r has GPU r mod (number of GPUs);
    rank 1 ─ GPU 1      rank 3 ─ GPU 1        simulated ranks are one process, on GPU 0

Parameters, activations, gradients, states and batches live on the GPU.  Messages between ranks go
through the host; so do checkpoints, and the results that are printed at the end.
"""

import numpy as np

from ...backend import Array
from ...comm import Communicator
from ...environment import launched
from ...launcher import UsageError
from ..config import TrainConfig


def check_gpu(config: TrainConfig) -> None:
    """Refuse --device cuda on a machine without a GPU or CuPy.  Raises UsageError."""
    if config.run.device != "cpu":
        num_gpus()


def num_gpus() -> int:
    """The number of CUDA GPUs, at least 1.  Raises UsageError if there is none, or no CuPy."""
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


def device_array(config: TrainConfig, comm: Communicator) -> Array:
    """Make this rank's device the current one; return an empty array on it."""
    if config.run.device == "cpu":
        return np.empty(0)
    if config.run.device != "cuda":
        raise ValueError(f"arrays live on no {config.run.device!r}: choose cpu or cuda")
    import cupy
    cupy.cuda.Device(comm.world_rank % num_gpus() if launched() else 0).use()
    return cupy.empty(0)
