"""MPI in ten lines: every rank sends a number to the next one, and prints what it received.

    python lessons/hello_ranks.py --ranks 4         mpirun -n 4 python lessons/hello_ranks.py

All ranks run this whole file.  docs/pages/mpi.md explains its words.
"""

import numpy as np

from minipar.launcher import launch


def main(comm):
    """Send my number to the right, and print the one that comes from the left."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    mine, theirs = np.array([10.0 * comm.rank]), np.empty(1)
    request = comm.irecv(theirs, left, tag=7)      # begin to receive, and go on
    comm.send(mine, right, tag=7)                  # may wait until the right rank receives
    request.wait()                                 # only now is the number in `theirs`
    print(f"rank {comm.rank} of {comm.size}: {theirs[0]} came from rank {left}")


if __name__ == "__main__":
    launch(main)
