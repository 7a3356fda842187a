"""Agreement: ranks with the same parameters must hold equal numbers, and use them alike."""

import hashlib
from collections.abc import Sequence

import numpy as np

from ..comm import Communicator
from ..comm.collectives import all_gather


def ranks_that_differ(comm: Communicator, digest: bytes) -> str:
    """Collective.  The ranks whose digest differs from rank 0's, as "1, 3", or "" if none does."""
    with comm.labelled("control"):
        all_digests = all_gather(comm, np.frombuffer(digest, np.uint8)).reshape(comm.size, -1)
    return ", ".join(str(r) for r in range(comm.size) if (all_digests[r] != all_digests[0]).any())


def check_uses(names: Sequence[str], comm: Communicator) -> None:
    """Raise RuntimeError, on every rank, unless all ranks used these weights in this order.

    Ranks that gather different weights would mix them up, silently where sizes are equal.
    """
    different = ranks_that_differ(comm, hashlib.sha256("\n".join(names).encode()).digest())
    if different:
        raise RuntimeError(
            f"ranks {different} used different weights than rank 0 in this step. Sharded weights "
            "are gathered by all ranks together, so every rank must use the same ones in the same "
            "order. Multiply an unwanted branch by 0, put both branches into one FSDP unit, or "
            "shard no parameters.")
