"""Do real ranks work together?  `minipar doctor` starts two, which try what every run needs.

    mpirun -n 2 python -m minipar.commands.doctor.ranks

If they do, this prints nothing and ends with status 0.
"""

import os
import signal
import subprocess
import sys

import numpy as np

from ...comm import Communicator
from ...comm.collectives import all_reduce
from ...comm.work import start_work
from ...environment import launched, mpirun_environment
from ...launcher import launch

MODULE = "minipar.commands.doctor.ranks"
LIMIT = 60      # seconds for two ranks to start and work; one wait may take a third


def work_together(comm: Communicator) -> None:
    """Collective.  Try a split, a non-blocking collective, a message and a shared window.

    Raises RuntimeError for a wrong result.  Errors of MPI pass as they are, or end the process.
    """
    whole = comm.split(0, key=-comm.rank)
    if whole.rank != comm.size - 1 - comm.rank:
        raise RuntimeError("split() numbers the ranks in another order than asked")
    number = np.full(3, comm.rank, np.int64)
    work = start_work(all_reduce, whole, number, algorithm="ring")       # on the highest tags
    mine, theirs = np.full(1 << 18, comm.rank, np.int32), np.empty(1 << 18, np.int32)
    whole.sendrecv(mine, (whole.rank + 1) % comm.size, theirs, (whole.rank - 1) % comm.size)
    if not (theirs == (comm.rank + 1) % comm.size).all():
        raise RuntimeError("a message came with different numbers than were sent")
    sums = [work.wait(), all_reduce(whole, number, algorithm="shared")]
    if any((total != comm.size * (comm.size - 1) // 2).any() for total in sums):
        raise RuntimeError("a sum over the ranks is wrong")


def try_two_ranks(mpirun: str) -> list[str]:
    """Start two ranks; return the problem that they have, as a list of one sentence, or []."""
    process = subprocess.Popen(
        [mpirun, "-n", "2", sys.executable, "-m", MODULE], text=True,
        env=mpirun_environment() | {"MINIPAR_TIMEOUT": str(LIMIT // 3)}, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        said, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return [f"two ranks that send each other a message do not end within {LIMIT} s: try "
                "another MPI (pip install mpich)"]
    if process.returncode == 0:
        return []
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no message"]
    telling = [line for line in lines if "minipar:" in line or "EXIT STRING" in line] or lines
    return [f"two ranks that split, send and share memory fail ({telling[0]}): {mpirun} -n 2 "
            f"{sys.executable} -m {MODULE} shows all that they say"]


if __name__ == "__main__":
    if launched() is None:
        sys.exit("minipar: this process was not started by an mpirun that is known: use MPICH's, "
                 "Open MPI's, or srun")
    launch(work_together)
