"""Gather Python objects and traces: values as JSON, in messages labelled "control"."""

import json
from typing import Any

import numpy as np

from .communicator import Communicator
from .trace import Trace


def gather_object(comm: Communicator, value: Any, root: int = 0) -> list | None:
    """Collective.  On `root` the JSON-like values of all ranks, in their order; None elsewhere."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    with comm.labelled("control"), comm.collective("gather_object", root=root):
        if comm.rank != root:
            comm.send(np.array([text.size], np.int64), root)
            comm.send(text, root)
            return None
        values = []
        for rank in range(comm.size):
            if rank == root:
                values.append(value)
                continue
            size = np.empty(1, np.int64)
            comm.recv(size, rank)
            received = np.empty(int(size[0]), np.uint8)
            comm.recv(received, rank)
            values.append(json.loads(received.tobytes()))
        return values


def gather_trace(comm: Communicator, trace: Trace, root: int = 0) -> Trace | None:
    """Collective.  On `root` the traces of all ranks merged; None elsewhere."""
    lists = gather_object(comm, trace.as_lists(), root)
    return None if lists is None else Trace.merged(map(Trace.from_lists, lists))
