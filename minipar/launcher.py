"""One program, two worlds: `launch(main)` runs main(comm) on every rank.

    mpirun -n 4 python program.py       four processes, real MPI
    python program.py --ranks 4         four simulated ranks in this process, virtual time

A failure on one rank ends all ranks, with its traceback and a non-zero exit status.  For a mistake
of the user (`UsageError`), one line replaces the traceback.
"""

import errno
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import threadpool_limits

from .autograd import Meter
from .comm import Cluster, CollectiveMismatch, Communicator, Deadlock
from .comm.collectives import broadcast
from .environment import blas_threads, is_interactive, launched
from .memory.remat.recompute import is_recomputing

if TYPE_CHECKING:
    from .comm.mpi.communicator import MPICommunicator

INTERRUPTED = 128 + signal.SIGINT       # the exit status that shells give to Ctrl-C
LONGEST = 4096          # bytes of an error that rank 0 sends to the others
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)     # disk, quota or limit on a file's size


class UsageError(Exception):
    """A mistake of the user: one line with what was expected, what came, and how to fix it.

    `status` is the exit status.  If every rank raises it, rank 0 prints it for all.  A rank that
    raises it alone prints it, unless rank 0 sent the error to all (`told`): then rank 0 prints it.
    """

    def __init__(self, message: str, status: int = 2, told: bool = False):
        super().__init__(message)
        self.status, self.told = status, told

    @classmethod
    def of(cls, error: Exception, where: str = "") -> "UsageError":
        """The UsageError for an unusable file or a refused value; `where` begins its line."""
        if not isinstance(error, OSError) or error.filename is None:
            return cls(f"{where}{error}")
        if error.errno in NO_ROOM:
            return cls(f"{error.filename}: {error.strerror}: make room, or give another place; "
                       "what was there before is as it was", status=1)
        return cls(f"{error.filename}: {error.strerror}: give a file that can be read, or a "
                   "place that can be written to")


@contextmanager
def errors_as_usage(where: str = "", *kinds: type[Exception]) -> Iterator[None]:
    """Context in which a value or file that the user gave is read: a refusal is a UsageError.

    ValueError, OSError and the errors in `kinds` count as refusals.  The line of a refused value
    begins with `where`.  Keep computations outside: a ValueError that they raise is a defect, which
    must show its traceback.
    """
    try:
        yield
    except (ValueError, OSError, *kinds) as error:
        raise UsageError.of(error, where) from error


def on_first_rank(comm: Communicator, write: Callable[[], Any]) -> Any:
    """Collective.  Call `write()` on rank 0 only; return its result there, None elsewhere.

    If a file cannot be written, or for another mistake of the user, all ranks raise the UsageError.
    """
    result, text = None, np.zeros(LONGEST, np.uint8)
    if comm.rank == 0:
        try:
            result = write()
        except (OSError, UsageError) as error:
            problem = error if isinstance(error, UsageError) else UsageError.of(error)
            line = f"{problem.status}{problem}".encode()[:LONGEST]
            text[:len(line)] = np.frombuffer(line, np.uint8)
    with comm.labelled("control"):
        line = broadcast(comm, text).tobytes().rstrip(b"\0").decode(errors="ignore")
    if line:
        raise UsageError(line[1:], status=int(line[0]), told=True)
    return result


def metered(main: Callable[[Communicator], Any]) -> Callable[[Communicator], Any]:
    """`main`, with every operation reported through `comm.report_compute`."""
    def run(comm: Communicator) -> Any:
        def done(started: float, name: str, phase: str, flops: int, num_bytes: int) -> None:
            again = phase == "forward" and is_recomputing()
            comm.report_compute(f"{name} {'again' if again else phase}", flops, num_bytes,
                                time.perf_counter() - started)
        with Meter(time.perf_counter, done).running():
            return main(comm)
    return run


def simulate(main: Callable[[Communicator], Any], cluster: Cluster) -> tuple[list, float]:
    """Run main(comm) on every rank of `cluster`; computation takes virtual time.

    Returns (what each rank returned, seconds of virtual time).
    """
    return cluster.run(metered(main))


def launch(main: Callable[[Communicator], Any], num_ranks: int = 4,
           cluster: Cluster | None = None) -> Any:
    """Run main(comm) on every rank; return its result on this rank (simulated: on rank 0).

    Under `mpirun` ranks are processes.  Without it they are simulated on `cluster`, by default one
    of `num_ranks` ranks.  `--ranks N` on the command line (it is removed from sys.argv) takes
    precedence over both: N ranks on a default Cluster.  A deadlock ends the program with its
    report; in a notebook, or at a prompt, it is raised.
    """
    threadpool_limits(blas_threads())
    if launched():
        return _launch_mpi(main)
    if is_interactive():                # the session continues: raise, as any function does
        return _launch_simulated(main, num_ranks, cluster)
    try:
        return _launch_simulated(main, num_ranks, cluster)
    except UsageError as error:
        sys.exit(report_usage(error))
    except (CollectiveMismatch, Deadlock) as error:
        print(f"minipar: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        sys.exit(report_usage(UsageError.of(error)))
    except KeyboardInterrupt:
        print("minipar: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _launch_simulated(main: Callable[[Communicator], Any], num_ranks: int,
                      cluster: Cluster | None) -> Any:
    asked = ranks_option(sys.argv)
    if cluster is None or asked is not None:
        cluster = Cluster(asked or num_ranks)
    return simulate(main, cluster)[0][0]


def ranks_option(argv: list[str]) -> int | None:
    """Remove `--ranks N` from the command line and return N; None without it."""
    for i, word in enumerate(argv):
        name, _, value = word.partition("=")
        if name != "--ranks":
            continue
        value = value or (argv[i + 1] if i + 1 < len(argv) else "")
        if not value.isdigit() or int(value) < 1:
            raise UsageError(f"--ranks takes a positive whole number, not {value!r}: "
                             "for example --ranks 4")
        del argv[i:i + 1 if "=" in word else i + 2]
        return int(value)
    return None


def report_usage(error: Exception) -> int:
    """Print, on rank 0, an error that all ranks have; return its exit status, by default 2."""
    world = launched()
    if not world or world.rank == 0:
        print(f"minipar: {error}", file=sys.stderr, flush=True)
    return getattr(error, "status", 2)


def _launch_mpi(main: Callable[[Communicator], Any]) -> Any:
    from .comm.mpi.guardian import abort
    from .comm.mpi.library import import_mpi
    from .comm.mpi.world import world_communicator
    try:
        MPI = import_mpi()
    except RuntimeError as error:
        sys.exit(report_usage(error))
    try:
        comm = world_communicator()
    except Exception:               # no room for a folder, no new process: no watchdog yet
        traceback.print_exc()
        abort(MPI, 1)
    signal.signal(signal.SIGINT, _interrupt_once)
    try:
        return main(comm)
    except UsageError as error:
        if _all_arrive(comm, seconds=2):        # every rank has it: end in good order, one line
            sys.exit(report_usage(error))
        end_all(comm, error)
    except BaseException as error:      # of any kind: the other ranks must not wait for this one
        end_all(comm, error)
        raise


def _interrupt_once(number: int, frame: Any) -> None:
    """Ignore further Ctrl-C: mpirun sends a second one, which must not interrupt the report."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _all_arrive(comm: "MPICommunicator", seconds: float) -> bool:
    """True if every rank arrives here within `seconds`."""
    arriving, deadline = comm.mpi_comm.Ibarrier(), time.monotonic() + seconds
    while not (arrived := arriving.Test()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return arrived


def exit_status(error: SystemExit) -> int:
    """The exit status that Python gives to `sys.exit(code)`: 0 for None, 1 for a text."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code
    return 1


def end_all(comm: "MPICommunicator", error: BaseException) -> None:
    """Report what happened on this rank, and end all real ranks with a non-zero exit status.

    It has no effect for sys.exit(0): then only this rank leaves.
    """
    from .comm.mpi.guardian import abort
    code, record = 1, comm.rank_state.record
    if isinstance(error, SystemExit):
        code = exit_status(error)
        if code == 0:
            return
        what = f"called sys.exit({error.code!r})"
    elif isinstance(error, KeyboardInterrupt):
        code, what = INTERRUPTED, "was interrupted"
    elif isinstance(error, UsageError):
        if error.told and comm.rank:
            time.sleep(2)               # meanwhile rank 0 reports it, and ends this rank
        code, what = error.status, f"alone: {error}"
    elif isinstance(error, OSError) and error.errno in NO_ROOM:
        what = f"alone: {UsageError.of(error)}"
    else:
        what = "failed:\n" + traceback.format_exc()
        if record is not None:
            record.observer.wait_for_turn()
    print(f"minipar: rank {comm.rank} of {comm.size} {what}", file=sys.stderr, flush=True)
    abort(comm.MPI, code)
