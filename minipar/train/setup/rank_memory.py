"""The memory of a rank: `minipar train --remat … --offload … --memory-limit …`.

    --remat sqrt              backward recomputes what forward does not keep (`remat.py`)
    --offload activations     arrays saved for backward wait in a file (`memory/offload`)
              optimizer       so do the optimizer's states; memory holds one block at a time
              parameters      so do FSDP's shards of parameters and gradients, unit by unit
    --memory-limit 512MB      of each rank: its ledger refuses more, and Linux limits the process

None of these options changes a gradient.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import numpy as np

from ...backend import allocating_with
from ...backend.mapped_file import DiskFull, MappedFile
from ...comm import Communicator
from ...comm.simulated.copy_stream import copy_streams
from ...launcher import UsageError
from ...memory.ledger import Ledger, OutOfMemory, megabytes
from ...memory.offload.activations import MIN_BYTES, OffloadActivations
from ...memory.remat.policies import parse_bytes
from ...memory.temporaries import StepLedger
from ...nn import Module
from ..config import TrainConfig
from .remat import check_remat, describe_remat

# the kinds of the ledger whose arrays are allocated in the file; activations are copied into it
OFFLOADED_KINDS = {"activations": (), "optimizer": ("optimizer states",),
                   "parameters": ("parameters", "gradients")}


def offload_names(config: TrainConfig) -> list[str]:
    """The names given to --offload.  Raises UsageError for an unknown one."""
    names = config.memory.offload.split(",") if config.memory.offload else []
    for name in names:
        if name not in OFFLOADED_KINDS:
            raise UsageError(f"--offload takes {', '.join(OFFLOADED_KINDS)}, separated by commas, "
                             f"not {name!r}")
    return names


def memory_limit(config: TrainConfig) -> int | None:
    """--memory-limit in bytes, or None.  Raises UsageError for a text that is no size."""
    text = config.memory.memory_limit
    if text is None:
        return None
    try:
        limit = parse_bytes(text)
    except ValueError:
        limit = 0
    if not limit:
        raise UsageError(f"--memory-limit takes a size such as 512MB or 1.5GB, not {text!r}")
    return limit


def check_memory(config: TrainConfig) -> None:
    """Refuse memory options that cannot work.  Raises UsageError."""
    check_remat(config)
    memory_limit(config)
    names = offload_names(config)
    if "parameters" in names and config.parallel.strategy != "fsdp":
        raise UsageError("--offload parameters moves the shards of fsdp, unit by unit: add "
                         f"--strategy fsdp (it is {config.parallel.strategy}), or leave "
                         "parameters out")


def check_offload_folder(config: TrainConfig) -> None:
    """Try to write into the folder of offloaded arrays.  Raises UsageError."""
    if not config.memory.offload:
        return
    try_to_write(config.memory.offload_dir or Path(tempfile.gettempdir()), "--offload's folder",
                 "--set memory.offload_dir=DIR")


def try_to_write(folder: Path, what: str, mend: str) -> None:
    """Raise UsageError unless files can be written in a folder, which is made if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{what} {folder} cannot be written to ({error.strerror}): give a folder "
                         f"that can, {mend}") from error


@contextmanager
def process_limit(config: TrainConfig, num_ranks: int) -> Iterator[None]:
    """Context in which Linux limits this process to --memory-limit for each of `num_ranks` ranks.

    Only private memory counts, not pages mapped from files.  Raises UsageError if the process
    already has more, or may not have so much.  On other systems there is no limit.
    """
    limit = memory_limit(config)
    if limit is None or not Path("/proc/self/status").exists():
        yield
        return
    import resource
    limit = min(limit * num_ranks, sys.maxsize)             # setrlimit takes no larger number
    a = np.ones((256, 256), np.float32)
    _ = a @ a               # the BLAS allocates its buffers now: under the limit it would crash
    in_use = _own_memory()
    if in_use >= limit:
        raise UsageError(f"--memory-limit {config.memory.memory_limit}: Python and its libraries "
                         f"alone have {megabytes(in_use)}: give each rank more")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    except ValueError as error:
        raise UsageError(f"--memory-limit {config.memory.memory_limit} is more than this process "
                         f"may have, {megabytes(hard)}: give less") from error
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _own_memory() -> int:
    """Bytes of private writable memory, as RLIMIT_DATA counts them."""
    pages = Path("/proc/self/statm").read_text().split()[5]
    return int(pages) * os.sysconf("SC_PAGESIZE")


class RankMemory:
    """One rank's ledger and its file of offloaded arrays.

    The ledger counts live bytes.  `ledger` is None if neither --memory-limit nor --out is given;
    `file` is None without --offload.
    """

    def __init__(self, config: TrainConfig, comm: Communicator):
        self.comm, self.limit, self.names = comm, memory_limit(config), offload_names(config)
        self.file = MappedFile(config.memory.offload_dir) if self.names else None
        self.offload: OffloadActivations | None = None
        self.ledger: Ledger | None = None
        if config.run.out is not None or self.limit:
            self.ledger = StepLedger(now=comm.now if config.run.out is not None else None,
                                     **({"limit": self.limit} if self.limit else {}))

    def offloading_new_arrays(self) -> AbstractContextManager:
        """Context in which new arrays of the offloaded kinds are allocated in the file."""
        kinds = [kind for name in self.names for kind in OFFLOADED_KINDS[name]]
        return allocating_with(dict.fromkeys(kinds, self.file.zeros)) if kinds else nullcontext()

    def prepare_offload(self, model: Module) -> None:
        """Before the first step: set up the offloading of activations, which skips parameters."""
        if "activations" in self.names:
            self.offload = OffloadActivations(self.file.empty, model.parameters(),
                                              *copy_streams(self.comm))

    def recording(self, observed: bool = True) -> AbstractContextManager:
        """Context in which the ledger counts: with a limit in every step, else in observed ones."""
        if self.ledger is None or not (observed or self.limit):
            return nullcontext()
        self.ledger.forget_history()
        return self.ledger.recording()

    def offloading_activations(self) -> AbstractContextManager:
        """Context of forward and backward, which offloads what forward saves for backward."""
        return self.offload.recording() if self.offload else nullcontext()

    def summary(self) -> str | None:
        """One line about the offloaded arrays; None without --offload."""
        if self.file is None:
            return None
        if not self.file.size:
            return (f"offloaded {', '.join(self.names)}: nothing, for arrays of less than "
                    f"{MIN_BYTES:,} bytes stay")
        return f"offloaded {', '.join(self.names)}: a file of {megabytes(self.file.size)} a rank"


@contextmanager
def memory_errors_as_usage(ledger: Ledger | None = None) -> Iterator[None]:
    """Context that turns a lack of memory into a UsageError of one sentence."""
    try:
        yield
    except (OutOfMemory, DiskFull) as error:
        raise UsageError(str(error), status=1) from error
    except MemoryError as error:
        what = str(error).removeprefix("Unable to allocate ").split(" and data")[0]
        sentence = (ledger or Ledger()).explain(
            f"the process got no more when {what or 'a little'} was asked for")
        raise UsageError(sentence, status=1) from error


def describe_memory(config: TrainConfig) -> str:
    """The memory options in a few words, for a headline; "" if there are none."""
    offload = config.memory.offload
    return describe_remat(config) + (f", offload {offload}" if offload else "")
