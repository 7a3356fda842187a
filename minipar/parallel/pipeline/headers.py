"""What an array looks like, told to a rank that does not know: a control message before the array.

    [ code of the dtype | number of axes | length of each axis, then zeros ]

The header is int64, of one length, so that the receiver needs to know nothing at all.
"""

import numpy as np

from ...backend import Array
from ...comm import Communicator, Request

MOST_AXES = 6
Form = tuple[tuple[int, ...], np.dtype]     # shape and dtype


def send_shape(comm: Communicator, array: Array, dest: int, tag: int = 0) -> Request:
    """Begin to send shape and dtype of `array`."""
    if array.ndim > MOST_AXES:
        raise ValueError(f"an array between stages has at most {MOST_AXES} axes, not {array.ndim}: "
                         "reshape it, and back in the next part")
    header = np.zeros(2 + MOST_AXES, np.int64)
    header[:2 + array.ndim] = ord(array.dtype.char), array.ndim, *array.shape
    with comm.labelled("control"):
        return comm.isend(header, dest, tag)


def recv_shape(comm: Communicator, source: int, tag: int = 0) -> Form:
    """Wait for them."""
    header = np.empty(2 + MOST_AXES, np.int64)
    with comm.labelled("control"):
        comm.recv(header, source, tag)
    code, num_axes, *shape = header.tolist()
    return tuple(shape[:num_axes]), np.dtype(chr(code))
