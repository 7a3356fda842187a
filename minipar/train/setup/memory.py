"""`minipar train --offload … --memory-limit …`: what can be told about memory, and what it means.

    --remat sqrt              backward computes again what is not kept (`remat.py`)
    --offload activations     what is saved for backward waits in a file (`memory/offload/`)
              optimizer       so do the optimizer's states, of which a block at a time is resident
              parameters      so do FSDP's shards of parameters and gradients, unit by unit
    --memory-limit 512MB      for each rank: counted by its ledger, enforced on the process (Linux)

None of these options changes a gradient.
"""

import argparse
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
from ...comm.simulated.copy_lane import copy_lanes
from ...launcher import UsageError
from ...memory.ledger import Ledger, OutOfMemory, megabytes
from ...memory.offload.activations import MIN_BYTES, OffloadActivations
from ...memory.remat.policies import parse_bytes
from ...memory.temporaries import StepLedger
from ...nn import Module
from .remat import add_remat_argument, check_remat
from .remat import described as remat_of

MEANING = {"activations": (), "optimizer": ("optimizer states",),
           "parameters": ("parameters", "gradients")}


def add_memory_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that go with memory."""
    group = parser.add_argument_group("memory")
    add_remat_argument(group)
    group.add_argument("--offload", metavar="WHAT,…", default="",
                       help="keep these in a file, mapped into memory as they are needed: "
                            "activations, optimizer (its states), parameters (with fsdp: its "
                            "shards of parameters and gradients)")
    group.add_argument("--offload-dir", type=Path, metavar="DIR",
                       help="where that file is, without a name and gone with the run: a folder "
                            "on a disk (the system's for temporary files)")
    group.add_argument("--memory-limit", metavar="SIZE",
                       help="end with a sentence when a rank needs more, for example 512MB")


def offloads(options: argparse.Namespace) -> list[str]:
    """What --offload names.  Raises UsageError for anything else."""
    names = options.offload.split(",") if options.offload else []
    for name in names:
        if name not in MEANING:
            raise UsageError(f"--offload takes {', '.join(MEANING)}, separated by commas, not "
                             f"{name!r}")
    return names


def limit_of(options: argparse.Namespace) -> int | None:
    """--memory-limit in bytes.  Raises UsageError for what is no size."""
    text = options.memory_limit
    if text is None:
        return None
    try:
        limit = parse_bytes(text)
    except ValueError:
        limit = 0
    if not limit:
        raise UsageError(f"--memory-limit takes a size such as 512MB or 1.5GB, not {text!r}")
    return limit


def check_memory(options: argparse.Namespace) -> None:
    """Refuse what cannot work.  Raises UsageError."""
    check_remat(options)
    limit_of(options)
    names = offloads(options)
    if "parameters" in names and options.strategy != "fsdp":
        raise UsageError("--offload parameters moves the shards of fsdp, unit by unit: add "
                         f"--strategy fsdp (it is {options.strategy}), or leave parameters out")
    if options.offload_dir is not None and not names:
        raise UsageError("--offload-dir goes with --offload: say what to keep there, for example "
                         "--offload activations")
    if names:
        folder = options.offload_dir or Path(tempfile.gettempdir())
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UsageError(f"--offload-dir {folder} cannot be written to ({error.strerror}): "
                             "give a folder that can") from error


@contextmanager
def process_limit(options: argparse.Namespace, num_ranks: int) -> Iterator[None]:
    """Context in which this process, of so many ranks, gets no more memory of its own than they
    may have; what it maps from files is not its own.  Raises UsageError if it has more already."""
    limit = limit_of(options)
    if limit is None or not Path("/proc/self/status").exists():
        yield
        return
    import resource
    limit = min(limit * num_ranks, sys.maxsize)             # what the system can be told
    some = np.ones((256, 256), np.float32)
    _ = some @ some                     # the BLAS takes its memory now: without, it would crash
    in_use = _own_memory()
    if in_use >= limit:
        raise UsageError(f"--memory-limit {options.memory_limit}: Python and its libraries alone "
                         f"have {megabytes(in_use)}: give each rank more")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    except ValueError as error:
        raise UsageError(f"--memory-limit {options.memory_limit} is more than this process may "
                         f"have, {megabytes(hard)}: give less") from error
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _own_memory() -> int:
    """Bytes of private writable memory, as RLIMIT_DATA counts them."""
    pages = Path("/proc/self/statm").read_text().split()[5]
    return int(pages) * os.sysconf("SC_PAGESIZE")


class Memory:
    """What one rank does about memory; `ledger` is None if nobody wants to know."""

    def __init__(self, options: argparse.Namespace, comm: Communicator):
        self.comm, self.limit, self.names = comm, limit_of(options), offloads(options)
        self.file = MappedFile(options.offload_dir) if self.names else None
        self.offload: OffloadActivations | None = None
        self.ledger: Ledger | None = None
        if options.out is not None or self.limit:
            self.ledger = StepLedger(now=comm.now if options.out is not None else None,
                                     **({"limit": self.limit} if self.limit else {}))

    def building(self) -> AbstractContextManager:
        """Context in which what is made of a kind to be offloaded is made in the file."""
        kinds = [kind for name in self.names for kind in MEANING[name]]
        return allocating_with(dict.fromkeys(kinds, self.file.zeros)) if kinds else nullcontext()

    def watch(self, model: Module) -> None:
        """Before the first step: these parameters are no activations."""
        if "activations" in self.names:
            self.offload = OffloadActivations(self.file.empty, model.parameters(),
                                              *copy_lanes(self.comm))

    def recording(self, observed: bool = True) -> AbstractContextManager:
        """Context of a step, in which the ledger counts: if it is observed, or if it must."""
        if self.ledger is None or not (observed or self.limit):
            return nullcontext()
        self.ledger.forget_history()
        return self.ledger.recording()

    def step(self) -> AbstractContextManager:
        """Context of forward and backward."""
        return self.offload.recording() if self.offload else nullcontext()

    def summary(self) -> str | None:
        """One line about what was offloaded."""
        if self.file is None:
            return None
        if not self.file.size:
            return (f"offloaded {', '.join(self.names)}: nothing, for arrays of less than "
                    f"{MIN_BYTES:,} bytes stay")
        return f"offloaded {', '.join(self.names)}: a file of {megabytes(self.file.size)} a rank"


@contextmanager
def explained(ledger: Ledger | None = None) -> Iterator[None]:
    """Context in which a lack of memory ends the run with one sentence, a UsageError."""
    try:
        yield
    except (OutOfMemory, DiskFull) as error:
        raise UsageError(str(error), status=1) from error
    except MemoryError as error:
        what = str(error).removeprefix("Unable to allocate ").split(" and data")[0]
        sentence = (ledger or Ledger()).explain(
            f"the process got no more when {what or 'a little'} was asked for")
        raise UsageError(sentence, status=1) from error


def described_memory(options: argparse.Namespace) -> str:
    """In a few words, for a headline; empty if there is nothing to say."""
    return remat_of(options) + (f", offload {options.offload}" if options.offload else "")
