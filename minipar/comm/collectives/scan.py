"""Scan: rank r gets the sum over ranks 0 … r.  Exclusive scan: the sum over ranks 0 … r-1.

    before   rank 0: a   rank 1: b     rank 2: c
    scan     rank 0: a   rank 1: a+b   rank 2: a+b+c
    exscan   rank 0: 0   rank 1: a     rank 2: a+b          (where rank r's part of a list begins)

`op` is sum, prod, max, min or, for a scan, a function.
"""

import numpy as np

from ...backend import Array
from ..arguments import OPERATORS, Combine, check_out, deliver, find_algorithm, find_operator
from ..communicator import Communicator


def recursive_doubling(comm: Communicator, mine: Array, before: Array | None,
                       combine: Combine) -> None:
    """⌈log₂ p⌉ rounds of n bytes: in round k rank r sends r + 2^k its sum of up to 2^k ranks.

        round 0   0 ─▶ 1   1 ─▶ 2   2 ─▶ 3   …      each has the sum of up to 2 ranks,
        round 1   0 ─▶ 2   1 ─▶ 3   …               then of 4

    In place: without `before`, `mine` becomes the scan.  With it, `before` becomes the exclusive
    scan (on rank 0 it stays as it is), and `mine` is scratch.  Hillis & Steele 1986.
    """
    p, r, distance = comm.size, comm.rank, 1
    arrived, has_before = np.empty_like(mine), False
    while distance < p:
        dest, source = r + distance, r - distance
        if source >= 0 and dest < p:
            comm.sendrecv(mine, dest, arrived, source)
        elif dest < p:
            comm.send(mine, dest)
        elif source >= 0:
            comm.recv(arrived, source)
        if source >= 0:
            combine(arrived, mine, out=mine)
            if before is not None and has_before:
                combine(arrived, before, out=before)
            elif before is not None:
                before[...], has_before = arrived, True
        distance *= 2


def linear(comm: Communicator, mine: Array, before: Array | None, combine: Combine) -> None:
    """p - 1 rounds of n bytes: each rank adds its array to the arriving sum, and passes that on.

        0 ─a▶ 1 ─a+b▶ 2 ─a+b+c▶ 3

    It works in place like `recursive_doubling`.
    """
    p, r = comm.size, comm.rank
    if r > 0:
        arrived = np.empty_like(mine) if before is None else before
        comm.recv(arrived, r - 1)
        if before is None or r < p - 1:
            combine(arrived, mine, out=mine)
    if r < p - 1:
        comm.send(mine, r + 1)


def scan(comm: Communicator, array: Array, op: str | Combine = "sum", algorithm: str = "auto",
         out: Array | None = None) -> Array:
    """Collective.  The reduction of `array` over this rank and those before it.

    The result, of the shape and dtype of `array`, is written into `out`, if given.
    """
    combine = find_operator(op, array)
    run = find_algorithm(comm, "scan", algorithm, array.nbytes)
    check_out(out, array, array.shape)
    buffer = np.empty_like(array, order="C")
    buffer[...] = array
    with comm.collective("scan", array, op=op, algorithm=algorithm):
        run(comm, buffer.reshape(buffer.size), None, combine)
    return deliver(buffer, out)


def exscan(comm: Communicator, array: Array, op: str | Combine = "sum", algorithm: str = "auto",
           out: Array | None = None) -> Array:
    """Collective.  The reduction of `array` over the ranks before this one.

    On rank 0 it is the neutral element: 0 for sum, 1 for prod, the least number for max, the
    largest for min.  The result has the shape and dtype of `array`; it is written into `out`, if
    given.  Raises ValueError for any other function, as its neutral element is not known.
    """
    combine = find_operator(op, array)
    run = find_algorithm(comm, "scan", algorithm, array.nbytes)
    check_out(out, array, array.shape)
    buffer, before = np.empty_like(array, order="C"), np.empty_like(array, order="C")
    buffer[...] = array
    before[...] = neutral(op, array.dtype)
    with comm.collective("exscan", array, op=op, algorithm=algorithm):
        run(comm, buffer.reshape(buffer.size), before.reshape(before.size), combine)
    return deliver(before, out)


def neutral(op: str | Combine, dtype: np.dtype) -> complex | int | bool:
    """The number with op(neutral, x) = x for every x of `dtype`."""
    name = next((name for name, ufunc in OPERATORS.items() if op in (name, ufunc)), None)
    if name is None:
        raise ValueError(f"an exscan by {getattr(op, '__name__', op)} has no number for rank 0: "
                         f"choose from {', '.join(OPERATORS)}, or take a scan")
    if name in ("sum", "prod"):
        return int(name == "prod")
    largest = name == "min"
    if dtype.kind == "b":
        return largest
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if largest else np.iinfo(dtype).min
    infinity = np.inf if largest else -np.inf
    return complex(infinity, infinity) if dtype.kind == "c" else infinity       # NumPy orders these
