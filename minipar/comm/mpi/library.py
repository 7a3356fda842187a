"""Load MPI, after checking that it belongs to the `mpirun` that started this process.

An `mpirun` of one MPI with the library of another gives N runs of one rank each, or aborts with an
obscure message about PMI.  So launcher and library are compared before the library is loaded.
"""

import functools
import importlib
import importlib.metadata
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ...environment import Launched, launched, minipar_command, prepare_mpi, speaks_pmix_only


def library_vendor() -> str | None:
    """"mpich" or "openmpi": the library that mpi4py is about to load; None if that is unknown.

    A wheel of mpi4py chooses an MPI library on import, and can tell which one before it loads it.
    An mpi4py built from source has one library built in, and does not tell which.
    """
    try:
        place = importlib.import_module("mpi4py").__path__
        if PathFinder.find_spec("mpi4py.MPI", place):       # one file, not one for each library
            return None
        return importlib.import_module("mpi4py._mpiabi")._get_mpiabi()
    except (ImportError, AttributeError, RuntimeError, OSError):
        return None


def mismatch() -> str | None:
    """The problem with this process's launcher and its MPI library; None if they fit."""
    world, loaded = launched(), library_vendor()
    if world is None or loaded not in ("mpich", "openmpi") or loaded == world.launcher:
        return None
    if world.launcher == "srun":        # a library of the site must be loaded to know more
        if loaded == "mpich" and speaks_pmix_only() and has_wheel("mpich"):
            return refused_by_srun(world, " with PMIx, which the mpich wheel does not speak")
        return None
    return (f"started by {world}, but mpi4py in {sys.prefix} loads {loaded}: "
            f"{world.size} ranks would be {world.size} runs of one rank each. Use the mpirun of "
            f"{loaded}, perhaps {sys.prefix}/bin/mpirun -n {world.size} … "
            f"({minipar_command('doctor')} says more)")


def refused_by_srun(world: Launched, how: str) -> str:
    """The remedy for tasks of `srun` that do not find each other."""
    return (f"srun started {world.size} tasks{how}: they would be {world.size} runs of one rank "
            "each. Start MPICH by srun --mpi=pmi2, Open MPI by srun --mpi=pmix (srun --mpi=list "
            "names what there is), or use mpirun inside salloc or sbatch")


def has_wheel(package: str) -> bool:
    """True if this MPI is installed as a Python package, which mpi4py prefers to any other."""
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def forget_shared_memory() -> None:
    """Remove the name of MPICH's shared memory from /dev/shm, once all ranks of this node use it.

    The memory itself stays until the last of these ranks ends.  With its name, megabytes would stay
    after every job that is killed, until the machine restarts.  (Open MPI opens its segments by
    name while it runs; its mpirun removes them, or the guardian does.)
    """
    with suppress(OSError):                         # there is no /proc on macOS
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.split()[-1]
            if path.startswith("/dev/shm/mpich_shm_"):
                Path(path).unlink(missing_ok=True)


@functools.cache
def import_mpi() -> Any:
    """mpi4py's MPI module.

    Raises RuntimeError, with the remedy, if there is none, or if the launcher is another MPI's.
    """
    problem = mismatch()
    if problem:
        raise RuntimeError(problem)
    prepare_mpi()
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(f"mpi4py found no usable MPI ({error}): `make setup`, or pip install "
                           "'.[mpi]' in the clone, brings one") from error
    world, num_seen = launched(), MPI.COMM_WORLD.Get_size()
    if world and world.size != num_seen and world.launcher == "srun":
        raise RuntimeError(refused_by_srun(world, f", but the MPI library sees {num_seen}"))
    if world and world.size != num_seen:
        raise RuntimeError(f"mpirun started {world.size} processes, but the MPI library sees "
                           f"{num_seen}: they do not belong together "
                           f"({minipar_command('doctor')} says more)")
    return MPI
