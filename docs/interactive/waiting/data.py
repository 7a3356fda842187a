"""Who waits for whom: small programs of sends and receives, and what the simulated cluster says."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minipar.comm import Cluster, Communicator, Deadlock

PROGRAMS = {
    "a ring: every rank sends first": [["send 1", "recv 2"], ["send 2", "recv 0"],
                                       ["send 0", "recv 1"]],
    "the same ring with sendrecv": [["sendrecv 1 2"], ["sendrecv 2 0"], ["sendrecv 0 1"]],
    "one rank receives first": [["recv 2", "send 1"], ["send 2", "recv 0"], ["send 0", "recv 1"]],
    "two ranks exchange": [["send 1", "recv 1"], ["send 0", "recv 0"]],
    "one message too many": [["send 1", "send 1"], ["recv 0"]],
    "received in the wrong order": [["send 2", "send 1"], ["recv 0", "send 2"],
                                    ["recv 1", "recv 0"]],
    "a chain of four": [["send 1"], ["recv 0", "send 2"], ["recv 1", "send 3"], ["recv 2"]],
}


def stuck_ranks(programs: Sequence[Sequence[str]]) -> list[int]:
    """The ranks that wait for ever on the simulated cluster, where a send waits for its receive."""
    def body(comm: Communicator) -> None:
        for line in programs[comm.rank]:
            word, *peers = line.split()
            out, first, last = np.empty(1), int(peers[0]), int(peers[-1])
            if word == "send":
                comm.send(np.ones(1), first)
            elif word == "recv":
                comm.recv(out, first)
            else:
                comm.sendrecv(np.ones(1), first, out, last)
    try:
        Cluster(len(programs)).run(body)
    except Deadlock as error:
        return sorted(error.stacks)
    return []


def data() -> dict[str, Any]:
    """{"programs": {name: {"ranks": [[line]], "stuck": [rank]}}}."""
    return {"programs": {name: {"ranks": programs, "stuck": stuck_ranks(programs)}
                         for name, programs in PROGRAMS.items()}}
