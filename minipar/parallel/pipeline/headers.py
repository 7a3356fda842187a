"""Headers: a control message that tells the receiver the shape and dtype of the array to come.

    [ code of the dtype | number of axes | length of each axis, then zeros ]

The header is int64 and always of the same length, so the receiver needs to know nothing before.
"""

import numpy as np

from ...backend import Array
from ...comm import Communicator, Request

MOST_AXES = 6
ArraySpec = tuple[tuple[int, ...], np.dtype]     # shape and dtype


def send_header(comm: Communicator, array: Array, dest: int, tag: int = 0) -> Request:
    """Begin to send the shape and dtype of `array`."""
    if array.ndim > MOST_AXES:
        raise ValueError(f"an array between stages has at most {MOST_AXES} axes, not {array.ndim}: "
                         "reshape it, and back in the next part")
    header = np.zeros(2 + MOST_AXES, np.int64)
    header[:2 + array.ndim] = ord(array.dtype.char), array.ndim, *array.shape
    with comm.labelled("control"):
        return comm.isend(header, dest, tag)


def recv_header(comm: Communicator, source: int, tag: int = 0) -> ArraySpec:
    """Receive the header of the array to come; wait for it."""
    header = np.empty(2 + MOST_AXES, np.int64)
    with comm.labelled("control"):
        comm.recv(header, source, tag)
    code, num_axes, *shape = header.tolist()
    return tuple(shape[:num_axes]), np.dtype(chr(code))
