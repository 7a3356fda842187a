"""Environment variables, which only this file reads, and facts about the machine and its launcher.

Everything here works before NumPy or MPI is imported, so that a wrong set-up is found before it
can hang.
"""

import builtins
import os
import platform
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# Each launcher's variables for the processes it starts: (launcher, size, rank, ranks on a machine).
_LAUNCHERS = (
    ("openmpi", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("mpich", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"),
)
LAUNCHER_PROGRAMS = ("mpirun", "mpiexec", "orterun", "prterun", "srun")
SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True)
class Launched:
    """A process started by a launcher: its rank, and the sizes of its world and of its machine."""

    launcher: str           # "openmpi", "mpich" or "srun"
    size: int
    rank: int
    local_size: int

    def __str__(self) -> str:
        return "srun" if self.launcher == "srun" else f"{self.launcher}'s mpirun"


def launched() -> Launched | None:
    """The launcher and rank of this process; None if no launcher started it."""
    step = _step_of_slurm()
    for launcher, size, rank, local_size in _LAUNCHERS:
        if os.environ.get(size, "").isdigit():
            num_ranks = int(os.environ[size])
            found = Launched(launcher, num_ranks, int(os.environ.get(rank, 0)),
                             int(os.environ.get(local_size, num_ranks)))
            # `srun --mpi=pmi2` gives MPICH's variables too; the steps of an mpirun are not ranks.
            same = step and (step.size, step.rank) == (found.size, found.rank)
            return step if same and launcher == "mpich" else found
    return step


def _step_of_slurm() -> Launched | None:
    """This process as one of several tasks of an `srun`; None in a batch script, or without `srun`.
    """
    size, rank = os.environ.get("SLURM_STEP_NUM_TASKS", ""), os.environ.get("SLURM_PROCID", "")
    if not size.isdigit() or not rank.isdigit() or int(size) < 2:
        return None
    tasks: list[int] = []                           # of each node: "2(x3),1" is 2, 2, 2, 1
    for part in os.environ.get("SLURM_STEP_TASKS_PER_NODE", size).split(","):
        number, _, times = part.rstrip(")").partition("(x")
        tasks += [int(number)] * int(times or 1)
    node = int(os.environ.get("SLURM_NODEID", 0))
    return Launched("srun", int(size), int(rank), tasks[node] if node < len(tasks) else int(size))


def speaks_pmix_only() -> bool:
    """True if the launcher of this process offers only PMIx for ranks to find each other."""
    return "PMIX_RANK" in os.environ and "PMI_RANK" not in os.environ


def cores() -> list[int]:
    """The numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def is_interactive() -> bool:
    """True if Python runs interactively: a prompt, `python -i`, IPython, a notebook."""
    return (hasattr(sys, "ps1") or bool(sys.flags.interactive)
            or hasattr(builtins, "__IPYTHON__"))


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(cores())


def in_browser() -> bool:
    """True in a web page (WebAssembly), which has 32-bit addresses and no threads or processes."""
    return sys.platform == "emscripten"


def shows_stores_in_order() -> bool:
    """True if other cores see what one core writes in the order in which it was written."""
    return platform.machine() in ("x86_64", "AMD64")


def free_shared_memory() -> int | None:
    """Free bytes in /dev/shm, where the ranks of a machine share memory.

    The result is 0 if that folder cannot be written to, and None if there is none.
    """
    if not os.path.isdir(SHARED_MEMORY):
        return None
    return shutil.disk_usage(SHARED_MEMORY).free if os.access(SHARED_MEMORY, os.W_OK) else 0


def blas_threads() -> int:
    """Threads for a rank's matrix products: by default its share of the cores.

    OMP_NUM_THREADS, OPENBLAS_NUM_THREADS or MKL_NUM_THREADS, in this order, sets another number.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    world = launched()
    return max(1, num_cores() // (world.local_size if world else 1))


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        sys.exit(f"minipar: {name} is a positive number of seconds, not {text!r}: unset it for the "
                 f"default, {default:g}")
    return seconds


def wait_limit() -> float:
    """Seconds that a real rank waits in one call before it reports the wait and ends the run."""
    return _seconds("MINIPAR_TIMEOUT", 300)


def is_checking() -> bool:
    """True if real ranks check each other's calls: MINIPAR_CHECK is set, and not 0."""
    return os.environ.get("MINIPAR_CHECK", "0") not in ("", "0")


def check_real_ranks() -> None:
    """Let real ranks check each other's calls from now on; to be called before they connect."""
    os.environ["MINIPAR_CHECK"] = "1"


def test_limits() -> tuple[float, float]:
    """(seconds for a test on real ranks, seconds for the other ranks after one has failed)."""
    return _seconds("MINIPAR_TEST_TIMEOUT", 60), _seconds("MINIPAR_TEST_GRACE", 3)


def cache_folder() -> Path:
    """The folder for what later runs reuse, such as the calibration of this machine."""
    if os.environ.get("MINIPAR_CACHE"):
        return Path(os.environ["MINIPAR_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "minipar"


def find_mpirun() -> str | None:
    """The `mpirun` that belongs to this Python: in its environment, else the one on PATH."""
    for name in ("mpirun", "mpiexec"):
        beside = Path(sys.executable).parent / name     # not resolved: that would leave a venv
        if beside.exists():
            return str(beside)
    return shutil.which("mpirun") or shutil.which("mpiexec")


def minipar_command(words: str, num_ranks: int = 0) -> str:
    """`python -m minipar WORDS` as the user would type it, under `mpirun` if `num_ranks` is given.

    It starts the Python that runs now, whether or not its environment is active:
    `.venv/bin/mpirun -n 4 .venv/bin/python -m minipar calibrate`.
    """
    if in_browser():                        # there the reader types it on another machine
        return f"minipar {words}"
    mpirun = find_mpirun()
    launcher = f"{_typed(mpirun) if mpirun else 'mpirun'} -n {num_ranks} " if num_ranks else ""
    return f"{launcher}{_typed(sys.executable)} -m minipar {words}"


def _typed(program: str) -> str:
    """The path of a program as the user would type it: its name if on PATH, else from this folder.
    """
    name, path = os.path.basename(program), os.path.abspath(program)
    if os.path.abspath(shutil.which(name) or "") == path:
        return name
    below = path.removeprefix(os.path.join(os.getcwd(), ""))
    return shlex.quote(below if os.sep in below else path)


def launcher_terminal() -> str | None:
    """The path of the terminal to which this process's `mpirun` prints.

    A rank's own output is a pipe to its launcher, an ancestor.  Linux tells where the output of the
    launcher goes.  The result is None if that is a file or another pipe, and on other systems.
    """
    process = os.getppid()
    while process > 1:
        try:
            output = os.readlink(f"/proc/{process}/fd/1")
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            return None
        name, _, words = stat.partition("(")[2].rpartition(")")
        if output.startswith(("/dev/pts/", "/dev/tty")):
            return output
        if name.startswith(LAUNCHER_PROGRAMS):
            return None
        process = int(words.split()[1])
    return None


def width_of(terminal: str | None) -> int:
    """COLUMNS, or the width of the terminal of that path; 0 if there is neither."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit():
        return int(columns)
    try:
        with open(terminal or "", "rb", buffering=0) as screen:
            return os.get_terminal_size(screen.fileno()).columns
    except OSError:                                     # there is none, or it is another user's
        return 0


def reader_console(in_file: int, **options: Any) -> "Console":
    """A console for people, on stdout: as wide as their terminal, and in colour if there is one.

    `in_file` is the width if there is neither COLUMNS nor a terminal.  `options` go to rich's
    Console, which reads NO_COLOR and FORCE_COLOR.  Under mpirun the terminal of mpirun counts.
    """
    from rich.console import Console
    if sys.stdout.isatty():
        return Console(**options)
    path = launcher_terminal() if launched() else None
    return Console(width=width_of(path) or in_file, force_terminal=bool(path) or None, **options)


def mpirun_environment() -> dict[str, str]:
    """The environment in which to start `mpirun` from Python, for any MPI.

    A launcher's own variables are left out, so that a process which is itself a rank can start
    another world.  Open MPI gets leave to run as root, and to run more ranks than cores.
    """
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith(("PMI", "PMIX", "OMPI_COMM", "MPI_LOCAL", "HYDI", "HYDRA",
                                         "SLURM_STEP_", "SLURM_PROCID"))}
    return {**inherited,
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",                       # Open MPI 4
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}      # Open MPI 5


def prepare_mpi() -> None:
    """Set, before MPI starts, the environment variables that its library reads then."""
    world = launched()
    if world and world.local_size > num_cores():        # ranks that wait give up their core
        os.environ.setdefault("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1")      # MPICH
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")      # Open MPI
