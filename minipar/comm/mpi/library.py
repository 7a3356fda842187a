"""Loading MPI, and finding out first whether it belongs to the `mpirun` that started us.

An `mpirun` of one MPI with the library of another gives N runs of one rank each, or an abort about
PMI that nobody understands.  So launcher and library are compared before the library is loaded.
"""

import functools
import importlib
import importlib.metadata
import os
import sys
import time
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ...environment import Launched, launched, minipar_command, prepare_mpi, speaks_pmix_only
from .guardian import Guardian


def library_vendor() -> str | None:
    """"mpich" or "openmpi": the library that mpi4py is about to load; None if it does not say.

    mpi4py's wheels choose a library when they are imported and know its kind before they load it;
    an mpi4py that was built from source has one built in, and does not say.
    """
    try:
        place = importlib.import_module("mpi4py").__path__
        if PathFinder.find_spec("mpi4py.MPI", place):       # one file, not one for each library
            return None
        return importlib.import_module("mpi4py._mpiabi")._get_mpiabi()
    except (ImportError, AttributeError, RuntimeError, OSError):
        return None


def mismatch() -> str | None:
    """What is wrong between this process's launcher and its MPI library; None if nothing is."""
    world, loaded = launched(), library_vendor()
    if world is None or loaded not in ("mpich", "openmpi") or loaded == world.launcher:
        return None
    if world.launcher == "srun":        # what a library of the site speaks, only loading it tells
        if loaded == "mpich" and speaks_pmix_only() and has_wheel("mpich"):
            return refused_by_srun(world, " with PMIx, which the mpich wheel does not speak")
        return None
    return (f"started by {world}, but mpi4py in {sys.prefix} loads {loaded}: "
            f"{world.size} ranks would be {world.size} runs of one rank each. Use the mpirun of "
            f"{loaded}, perhaps {sys.prefix}/bin/mpirun -n {world.size} … "
            f"({minipar_command('doctor')} says more)")


def refused_by_srun(world: Launched, how: str) -> str:
    """What to do about tasks of `srun` that do not find each other."""
    return (f"srun started {world.size} tasks{how}: they would be {world.size} runs of one rank "
            "each. Start MPICH by srun --mpi=pmi2, Open MPI by srun --mpi=pmix (srun --mpi=list "
            "names what there is), or use mpirun inside salloc or sbatch")


def has_wheel(package: str) -> bool:
    """Whether this MPI is installed as a Python package, which mpi4py loads before any other."""
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def abort(MPI: Any, guardian: Guardian, code: int) -> None:
    """End every rank at once, with this exit status; what had to be said has been printed.

    MPI's own words about it would only hide ours.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    guardian.say("told")
    time.sleep(0.5)             # mpirun drops what it has not passed on when it hears of the abort
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    MPI.COMM_WORLD.Abort(code)


def forget_shared_memory() -> None:
    """Remove the name of MPICH's shared memory from /dev/shm, once all ranks of this node use it.

    The memory itself stays until the last of them ends, however that is.  With its name MPICH
    would leave it, megabytes, after every job that ends by force, until the machine restarts.
    (Open MPI names its own again while it runs; its mpirun removes them, else the guardian.)
    """
    with suppress(OSError):                         # there is no /proc on macOS
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.split()[-1]
            if path.startswith("/dev/shm/mpich_shm_"):
                Path(path).unlink(missing_ok=True)


@functools.cache
def import_mpi():
    """mpi4py's MPI module.

    Raises RuntimeError, with the mend, if there is none or it is not that of the launcher.
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
