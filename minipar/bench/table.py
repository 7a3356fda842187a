"""Runs the measurements, each in processes of its own, and prints them as one table."""

import importlib
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import numpy as np
from threadpoolctl import threadpool_info

from ..environment import find_mpirun, mpirun_environment, num_cores
from ..launcher import UsageError, launch
from .timing import Row

NAMES = ("gpt", "gpt-stock-malloc", "mlp", "data-parallel", "data-parallel-peers", "pipeline",
         "bubbles", "tensor-parallel", "schedules", "memory", "simulated", "collectives-2",
         "collectives-4")
RANKS = {"data-parallel": 2, "data-parallel-peers": 2, "pipeline": 2, "bubbles": 2,
         "tensor-parallel": 2, "collectives-2": 2, "collectives-4": 4}  # of MPI; else none
MODULES = {"gpt-stock-malloc": "gpt", "collectives-2": "collectives",
           "collectives-4": "collectives", "data-parallel-peers": "peers.data_parallel"}


def module_of(name: str) -> ModuleType:
    """Where `measure` is, which makes its rows."""
    return importlib.import_module(f".{MODULES.get(name, name.replace('-', '_'))}", __package__)


def work(name: str, num_rounds: int, out: Path | None) -> None:
    """In a process of its own: measure; write the share of a core it had, and the rows, as JSON."""
    wall, cpu = time.perf_counter(), time.process_time()
    module = module_of(name)
    more = {"out": out} if name == "bubbles" else {}
    if name in RANKS:
        rows = launch(lambda comm: module.measure(comm, num_rounds, **more)
                      if comm.size == RANKS[name] else [])
    elif name == "gpt-stock-malloc":
        rows = module.measure(num_rounds, "stock")
    else:
        rows = module.measure(num_rounds)
    if rows:                        # of several ranks only the first has some
        share = (time.process_time() - cpu) / (time.perf_counter() - wall)
        print(json.dumps([share, [asdict(row) for row in rows]]), flush=True)


def measure(name: str, num_rounds: int, out: Path | None) -> tuple[float, list[Row]]:
    """Start the process, or the ranks, that measure `name`; one thread each.

    Returns (the share of a core that it had, the rows).
    """
    command = [sys.executable, "-m", "minipar", "bench", name, "--worker",
               "--rounds", str(num_rounds)]
    if out is not None:
        command += ["--out", str(out)]
    if name in RANKS:
        mpirun = find_mpirun()
        if mpirun is None or importlib.util.find_spec("mpi4py") is None:
            return 1.0, [Row(f"{name} on {RANKS[name]} ranks", "needs MPI: pip install '.[mpi]'")]
        command = [mpirun, "-n", str(RANKS[name]), *command]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # Four ranks on two cores: we have MPICH sleep while it waits, which helps whoever computes and
    # makes messages, ours and its own, five times as slow. Here nobody computes.
    settings = {**one_thread, "MPIR_CVAR_ENABLE_HEAVY_YIELD": "0"}
    done = subprocess.run(command, env={**mpirun_environment(), **settings},
                          stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise UsageError(f"the measurement {name} ended with exit status {done.returncode}; its "
                         "own message is above", status=1)
    share, rows = json.loads(done.stdout.splitlines()[0])
    return share, [Row(**row) for row in rows]


def measure_all(names: Sequence[str], num_rounds: int, out: Path | None
                ) -> Iterator[tuple[str, list[Row], str]]:
    """(a name, its rows, a warning or "") for each measurement, as it is done."""
    for name in names:
        share, rows = measure(name, num_rounds, out)
        # Where PyTorch's ranks wait for each other they sleep, in some groups 5 % of the time.
        is_disturbed = share < 0.90 * min(1.0, num_cores() / RANKS.get(name, 1))
        yield name, rows, (f"{name}: had only {share:.0%} of a core; other programs were "
                           "running, so measure again") if is_disturbed else ""


def settings() -> str:
    """What the figures depend on, in a few lines."""
    blas = next((f"{info['internal_api']} {info['version']}, {info['architecture']} kernels"
                 for info in threadpool_info() if info["user_api"] == "blas"
                 and "architecture" in info), "unknown")
    forced = mpirun_environment().get("OPENBLAS_CORETYPE", "not set")
    lines = [f"Python {sys.version.split()[0]}, NumPy {np.__version__} on {blas} "
             f"(OPENBLAS_CORETYPE {forced})"]
    if importlib.util.find_spec("torch"):
        from importlib.metadata import version
        lines.append(f"PyTorch {version('torch')}, eager")
    else:
        lines.append("PyTorch is not installed: its rows are missing "
                     "(pip install '.[peers]' brings it)")
    lines.append("malloc keeps freed memory (mallopt) except where stock malloc is said, and in "
                 "collectives but the rows that say so")
    return "\n".join(lines)
