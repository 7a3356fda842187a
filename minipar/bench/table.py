"""Runs the measurements, each in processes of its own, and prints them as one table."""

import argparse
import importlib
import importlib.util
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from threadpoolctl import threadpool_info

from ..commands.parser import ArgumentParser
from ..environment import find_mpirun, mpirun_environment, num_cores
from ..launcher import UsageError, launch, report_usage
from .timing import Row

NAMES = ("gpt", "gpt-stock-malloc", "mlp", "data-parallel", "data-parallel-peers", "pipeline",
         "bubbles", "tensor-parallel", "schedules", "memory", "simulated", "collectives-2",
         "collectives-4")
RANKS = {"data-parallel": 2, "data-parallel-peers": 2, "pipeline": 2, "bubbles": 2,
         "tensor-parallel": 2, "collectives-2": 2, "collectives-4": 4}  # of MPI; else none
MODULES = {"gpt-stock-malloc": "gpt", "collectives-2": "collectives",
           "collectives-4": "collectives", "data-parallel-peers": "peers.data_parallel"}


class _Parser(ArgumentParser):
    def error(self, message: str) -> None:
        raise UsageError(f"{message} (minipar bench --help lists the options)")


def main(argv: list[str]) -> int:
    """Measure what `argv` names (all by default) and print the table; return the exit status."""
    parser = _Parser(prog="minipar bench", description=f"Measurements: {', '.join(NAMES)}.")
    parser.add_argument("names", nargs="*", metavar="name", help="what to measure (default: all)")
    parser.add_argument("--rounds", type=int, default=20, help="repetitions (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="few repetitions: a rough look")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write pictures there (of bubbles)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    try:
        options = parser.parse_args(argv)
        num_rounds = 4 if options.quick else options.rounds
        for name in options.names:
            if name not in NAMES:
                raise UsageError(f"there is no measurement {name!r}: choose from "
                                 f"{', '.join(NAMES)}")
        if num_rounds < 1:
            raise UsageError(f"--rounds takes a positive whole number, not {num_rounds}")
        if options.worker:
            _work(options.names[0], num_rounds, options.out)
            return 0
        _print_table(options.names or NAMES, num_rounds, options.out)
    except UsageError as error:
        return report_usage(error)
    return 0


def module_of(name: str) -> ModuleType:
    """Where `measure` is, which makes its rows."""
    return importlib.import_module(f".{MODULES.get(name, name.replace('-', '_'))}", __package__)


def _work(name: str, num_rounds: int, out: Path | None) -> None:
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


def _measure(name: str, num_rounds: int, out: Path | None) -> tuple[float, list[Row]]:
    """Start the process, or the ranks, that measure `name`; one thread each.

    Returns (the share of a core that it had, the rows).
    """
    command = [sys.executable, "-m", "minipar.bench", name, "--worker", "--rounds", str(num_rounds)]
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


def _print_table(names: list[str], num_rounds: int, out: Path | None) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table(title=f"medians of {num_rounds} interleaved rounds, float32, one thread per rank")
    for column in ("what", "minipar", "against", "ratio", "target"):
        table.add_column(column, justify="left" if column == "what" else "right")
    disturbed = []
    with console.status("") as status:
        for name in names:
            status.update(f"measuring {name}")
            share, rows = _measure(name, num_rounds, out)
            for row in rows:
                table.add_row(*_cells(row))
            table.add_section()
            # Where PyTorch's ranks wait for each other they sleep, in some groups 5 % of the time.
            if share < 0.90 * min(1.0, num_cores() / RANKS.get(name, 1)):
                disturbed.append(f"{name}: had only {share:.0%} of a core; other programs were "
                                 "running, so measure again")
    console.print(_settings(), highlight=False, markup=False)
    console.print(table)
    console.print("\n".join(disturbed), highlight=False, markup=False)


def _cells(row: Row) -> list[str]:
    ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
    words = [escape(text) for text in (row.what, row.ours, row.theirs)]
    if row.target is None:
        return [*words, ratio, ""]
    color = "green" if row.met else "red"
    sign = "≥" if row.at_least else "≤"
    return [*words, f"[{color}]{ratio}[/{color}]", f"{sign} {row.target:.2f}"]


def _settings() -> str:
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
