"""What a communicator refuses: a wrong array, rank or tag, and mpi4py's names of its methods.

A call of a communicator makes only quick tests, and calls these functions if one fails.  They look
again: an array of CuPy fails a quick test, and is no mistake.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..backend import is_gpu, is_host

if TYPE_CHECKING:
    from .communicator import Communicator

NUM_TAGS = 1 << 15      # the least number of tags that every MPI library must offer

# mpi4py's name of a method, in small letters -> what to write here.
MPI4PY_NAMES = {
    "get_rank": "comm.rank", "get_size": "comm.size",
    "ssend": "comm.send(array, dest)", "issend": "comm.isend(array, dest)",
    "barrier": "mp.barrier(comm)", "bcast": "mp.broadcast(comm, array, root=0)",
    "reduce": "mp.reduce(comm, array, op='sum', root=0)",
    "allreduce": "mp.all_reduce(comm, array, op='sum')",
    "gather": "mp.gather(comm, array, root=0)", "gatherv": "mp.gather(comm, array, counts=lengths)",
    "allgather": "mp.all_gather(comm, array)",
    "allgatherv": "mp.all_gather(comm, array, counts=lengths)",
    "scatter": "mp.scatter(comm, array, root=0)",
    "scatterv": "mp.scatter(comm, array, counts=lengths)",
    "reduce_scatter": "mp.reduce_scatter(comm, array)", "alltoall": "mp.all_to_all(comm, array)",
    "reduce_scatter_block": "mp.reduce_scatter(comm, array)",
    "alltoallv": "mp.all_to_all(comm, array, counts=table)",
    "scan": "mp.scan(comm, array)", "exscan": "mp.exscan(comm, array)",
    "send": "comm.send(array, dest)", "recv": "comm.recv(out, source)",
    "isend": "comm.isend(array, dest)", "irecv": "comm.irecv(out, source)",
    "sendrecv": "comm.sendrecv(array, dest, out, source)", "split": "comm.split(color, key)",
}


class OtherName:
    """A name that mpi4py's communicators have and these do not: reading it raises AttributeError.

    There is one object for each name: a `__getattr__` would slow down every attribute access.
    """

    def __init__(self, name: str):
        self.name = name

    def __get__(self, comm: "Communicator", kind: type) -> None:
        raise AttributeError(f"{kind.__name__} has no {self.name}: write "
                             f"{MPI4PY_NAMES[self.name.lower()]}", name=self.name, obj=comm)


def no_communicator_error() -> TypeError:
    """The error for `Communicator()`."""
    return TypeError("a Communicator comes from launch(main), Cluster(n).run(main) or "
                     "Communicator.from_mpi(mpi_comm)")


def no_rank_error(comm: "Communicator", peer: int, role: str) -> ValueError:
    """The error for a `peer` that is no rank; `role` is what it was given as."""
    return ValueError(f"{role}={peer} is no rank of this communicator: it has 0 … {comm.size - 1}")


def check_array(value: Any) -> None:
    """Raise TypeError unless `value` is an array, of any library, but no masked array or matrix."""
    kind = type(value).__name__
    if hasattr(value, "world_rank"):
        raise TypeError(f"expected an array, got a {kind}: the communicator comes first, as in "
                        "mp.all_reduce(comm, array)")
    if hasattr(value, "requires_grad"):
        raise TypeError(f"expected an array, got a {kind}: pass tensor.data; to differentiate "
                        "through it, use minipar.parallel.conjugate")
    if not (hasattr(value, "nbytes") and hasattr(value, "dtype")):
        raise TypeError(f"expected an array, got a {kind}: numbers become one by np.array(numbers);"
                        " a rank that receives gives an array of the message's shape and dtype")
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"expected an array, got a {kind}: its numbers would travel without its "
                        "mask; give array.filled(value), and np.ma.getmaskarray(array) apart")
    if isinstance(value, np.matrix):
        raise TypeError(f"expected an array, got a {kind}, which cannot become a vector: give "
                        "np.asarray(array)")


def check_numbers(value: Any) -> None:
    """Raise TypeError unless `value` is an array, and for a NumPy array of Python objects.

    Another array type may hold objects that stand for numbers: simulated ranks pass them on.
    """
    check_array(value)
    if type(value) is np.ndarray and value.dtype.hasobject:
        raise TypeError(f"an array of {value.dtype} holds Python objects, which mean nothing to "
                        "another rank: give it a dtype of numbers, such as np.float64")


def check_place(out: Any, name: str = "the array to write into") -> None:
    """Raise TypeError unless `out` is an array to write into, ValueError if it is read-only."""
    check_array(out)
    if isinstance(out, np.generic):
        raise TypeError(f"a {type(out).__name__} is one number that cannot be written into: give "
                        "an array, such as np.empty(1)")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError(f"{name}, {out.dtype} {out.shape}, is read-only: give one that is "
                         "not, such as array.copy()")


def check_axis(array: Any, dim: int, name: str = "dim") -> None:
    """Raise the errors of `check_numbers`, and ValueError if `array` has no axis `dim`."""
    check_numbers(array)
    if -array.ndim <= dim < array.ndim:
        return
    has = f"has axes 0 … {array.ndim - 1}" if array.ndim > 1 else "has only axis 0"
    if not array.ndim:
        has = "has no axis to cut: give one, for example by array.reshape(1)"
    raise ValueError(f"{name}={dim}, but an array of shape {array.shape} {has}")


def check_message(comm: "Communicator", array: Any, peer: int, role: str, tag: int) -> None:
    """Raise TypeError or ValueError unless `array` can be sent to `peer`, or received, with `tag`.

    `role` is "dest" or "source".
    """
    (check_place if role == "source" else check_array)(array)
    if not comm.is_simulated:
        check_numbers(array)
        if role == "source" and not (is_host(array) or is_gpu(array)):
            raise TypeError(f"MPI cannot receive into a {type(array).__name__}, which has no "
                            "numbers")
    comm.check_peer(peer, role)
    if not 0 <= tag < NUM_TAGS:
        raise ValueError(f"tag={tag}: a tag is a number from 0 to {NUM_TAGS - 1}")
