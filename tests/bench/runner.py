"""Every measurement by name, and the runner: each measurement runs in processes of its own.

A worker prints a line of JSON for each row as soon as it is measured, so that an error takes away
only the rows that would have followed:

    {"what": "MLP step, SGD", …}        a row
    {"failure": "AssertionError: …"}    why there are no more rows
    {"share": 0.98}                     the end: the share of a core that the worker had
"""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_info

from minipar.comm import Communicator
from minipar.environment import find_mpirun, mpirun_environment, num_cores
from minipar.launcher import launch

from .timing import Row


class Measurement(NamedTuple):
    """The module whose `measure` makes the rows, on MPI ranks (0: one process) with `options`."""

    module: str
    num_ranks: int = 0
    options: Mapping[str, str] = {}


MEASUREMENTS = {
    "gpt": Measurement("gpt"),
    "gpt-stock-malloc": Measurement("gpt", options={"malloc": "stock"}),
    "gpt2-small": Measurement("gpt2_small"),
    "gpu": Measurement("gpu"),
    "mlp": Measurement("mlp"),
    "small-models": Measurement("small_models"),
    "decode": Measurement("decode"),
    "deep-mlp": Measurement("on_ranks.deep_mlp", 2),
    "data-parallel": Measurement("on_ranks.data_parallel", 2),
    "data-parallel-pytorch": Measurement("on_ranks.data_parallel_pytorch", 2),
    "pipeline": Measurement("on_ranks.pipeline", 2),
    "bubbles": Measurement("on_ranks.bubbles", 2),
    "tensor-parallel": Measurement("on_ranks.tensor_parallel", 2),
    "schedules": Measurement("simulators", options={"what": "schedules"}),
    "memory": Measurement("memory"),
    "serve": Measurement("serve"),
    "simulated": Measurement("simulators", options={"what": "cluster"}),
    "collectives-2": Measurement("on_ranks.collectives", 2),
    "collectives-4": Measurement("on_ranks.collectives", 4),
}


WORKER = ("-m", "tests.bench")              # Python's arguments that start a worker
ROOT = Path(__file__).parents[2]            # where workers find this package


def function_of(name: str) -> Callable[..., Iterable[Row]]:
    """The function that measures `name`: of a communicator, if it needs ranks, and the rounds."""
    found = MEASUREMENTS[name]
    return partial(import_module(f".{found.module}", __package__).measure, **found.options)


def work(name: str, num_rounds: int, out: Path | None) -> None:
    """Measure in this process, and print what came as lines of JSON (see above)."""
    wall, cpu, num_ranks = time.perf_counter(), time.process_time(), MEASUREMENTS[name].num_ranks
    pictures = {"out": out} if name in ("bubbles", "serve") else {}

    def run(*comm: Communicator) -> None:
        is_first = not comm or comm[0].rank == 0
        try:
            for row in function_of(name)(*comm, num_rounds, **pictures):
                if is_first:
                    print_line(**asdict(row))
        except Exception as error:
            print_line(failure=describe(error))
            raise
        if is_first:
            print_line(share=(time.process_time() - cpu) / (time.perf_counter() - wall))

    if num_ranks:
        launch(run, num_ranks)
    else:
        run()


def print_line(**values: object) -> None:
    """Print a line for the process that started this one, at once: ranks print beside others."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def describe(error: Exception) -> str:
    """The kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")


def measure(name: str, num_rounds: int, out: Path | None) -> tuple[float, list[Row]]:
    """Start the process, or the ranks, that measure `name`, with one thread each.

    Returns (the share of a core that it had, the rows).  If it fails, the last row says why.
    """
    command = [sys.executable, *WORKER, name, "--worker", "--rounds", str(num_rounds)]
    if out is not None:
        command += ["--out", str(out.absolute())]
    num_ranks = MEASUREMENTS[name].num_ranks
    if num_ranks:
        mpirun = find_mpirun()
        if mpirun is None or importlib.util.find_spec("mpi4py") is None:
            return 1.0, [Row(f"{name} on {num_ranks} ranks", "needs MPI: pip install '.[mpi]'")]
        command = [mpirun, "-n", str(num_ranks), *command]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # Elsewhere MPICH sleeps while it waits: ranks that compute then have the cores, but messages
    # take five times as long.  Here no rank computes while others wait.
    settings = {**one_thread, "MPIR_CVAR_ENABLE_HEAVY_YIELD": "0"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={
        **mpirun_environment(), **settings, "PYTHONPATH": str(ROOT)})
    # Libraries may print lines of their own.
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    rows = [Row(**line) for line in lines if "what" in line]
    failures = [line["failure"] for line in lines if "failure" in line]
    shares = [line["share"] for line in lines if "share" in line]
    if done.returncode or failures or not shares:
        why = failures[0] if failures else f"it ended with exit status {done.returncode}"
        return 1.0, [*rows, Row.failed(name, why)]
    return shares[0], rows


def measure_all(names: Sequence[str], num_rounds: int, out: Path | None
                ) -> Iterator[tuple[str, list[Row], str]]:
    """Yield (name, rows, a warning or "") after each measurement, also after one that failed."""
    for name in names:
        try:
            share, rows = measure(name, num_rounds, out)
        except Exception as error:      # no process could be started: the others may still run
            share, rows = 1.0, [Row.failed(name, describe(error))]
        # PyTorch's ranks sleep while they wait for each other, in some groups 5 % of the time.
        is_disturbed = share < 0.90 * min(1.0, num_cores() / max(1, MEASUREMENTS[name].num_ranks))
        yield name, rows, (f"{name}: had only {share:.0%} of a core; other programs were "
                           "running, so measure again") if is_disturbed else ""


def settings() -> str:
    """The versions and settings that the figures depend on, in a few lines."""
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
                     "(pip install '.[pytorch]' brings it)")
    lines.append("malloc keeps freed memory (mallopt) except where stock malloc is said, and in "
                 "collectives but the rows that say so")
    return "\n".join(lines)
