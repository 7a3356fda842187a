"""The simulated cluster: any number of ranks in one process, in virtual time.

    cluster.py, rank.py, communicator.py    ranks are greenlets in virtual time
    matching.py                             where a send meets its receive
    ready.py                                which rank continues next
    progress.py                             non-blocking collectives
    links.py                                links within and between nodes, random delays
    deadlock.py, mismatch.py                the reports: who waits for what, who called what
    replay.py                               the same messages on another cluster
    copy_stream.py                          copies between device and host

Start with `Cluster(4).run(main)`.  `minipar/step_simulation` is built on this: it predicts a
training step on thousands of GPUs (`minipar simulate`).
"""

from .cluster import Cluster
from .communicator import SimulatedCommunicator

__all__ = ["Cluster", "SimulatedCommunicator"]
