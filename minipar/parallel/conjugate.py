"""Conjugate pairs: collectives as differentiable operations, each the backward of its partner.

A collective is linear, so its backward is its transpose, which is another collective.  The types
say how a value is spread over the ranks of `comm` (V and P values differ from rank to rank):

    I  invariant   the same value everywhere, used once         its gradient: I
    R  replicate   the same value everywhere; each rank uses    its gradient: P
                   it for different data, so gradients add up
    V  varying     every rank has its own part                  its gradient: V
    P  partial     the value is the sum over the ranks          its gradient: R

    operation       forward         backward        types   where it stands
    copy_to         identity        all-reduce      I → R   ddp_by_autograd; Megatron's f
    reduce_from     all-reduce      identity        P → I   Megatron's g
    scatter_to      split           all-gather      I → V   activations between stages, in pieces
    gather_from     all-gather      split           V → I   … and whole again
    all_gather      all-gather      reduce-scatter  V → R   zero3_by_autograd; sequence parallelism
    reduce_scatter  reduce-scatter  all-gather      P → V   sequence parallelism
    all_to_all      all-to-all      all-to-all      V → V   experts; Ulysses

A pair is right if ⟨A x, y⟩ = ⟨x, Aᵀ y⟩, which is how it is tested.  f and g: Shoeybi et al. 2019
(Megatron-LM), figure 3; the all-gather pair: Korthikanti et al. 2022, figure 5.
"""

from collections.abc import Callable
from functools import partial

from ..autograd import Function, Tensor
from ..backend import Array
from ..comm import Communicator, collectives


def conjugate(forward: Callable, backward: Callable, name: str = "Collective",
              conjugate_name: str = "Collective") -> tuple[type[Function], type[Function]]:
    """Two differentiable operations, each the backward of the other; errors show their names.

    `forward(comm, array, **options)` and `backward(comm, array, **options)` are plain functions on
    arrays; both get the same options, such as `dim` and `total`.
    """
    def operation(there: Callable, back: Callable, name: str) -> type[Function]:
        class Collective(Function):
            metered = False     # the communicator counts its messages

            @staticmethod
            def forward(ctx, array, comm, **options):
                ctx.comm, ctx.options = comm, options
                return there(comm, array, **options)

            @staticmethod
            def backward(ctx, g):
                comm, options = ctx.comm, ctx.options       # so that the pullback keeps no ctx
                return [lambda: back(comm, g, **options)]
        Collective.__name__ = name      # as it appears in error messages
        return Collective
    return operation(forward, backward, name), operation(backward, forward, conjugate_name)


def _identity(comm: Communicator, array: Array) -> Array:
    return array


def _split(comm: Communicator, array: Array, dim: int, total: int) -> Array:
    """This rank's piece along `dim`."""
    start, stop = collectives.chunk_bounds(total, comm.size)[comm.rank]
    return array[(slice(None),) * dim + (slice(start, stop),)]


def _reduce_scatter(comm: Communicator, array: Array, dim: int, total: int) -> Array:
    return collectives.reduce_scatter(comm, array, dim)


def _exchange_back(comm: Communicator, array: Array, split_dim: int, concat_dim: int) -> Array:
    return collectives.all_to_all(comm, array, concat_dim, split_dim)


# not "auto": by the ring every sum costs 2n(p-1)/p, as the docstrings assume
by_ring = partial(collectives.all_reduce, algorithm="ring")
CopyTo, ReduceFrom = conjugate(_identity, by_ring, "CopyTo", "ReduceFrom")
ScatterTo, GatherFrom = conjugate(_split, collectives.all_gather, "ScatterTo", "GatherFrom")
AllGather, ReduceScatter = conjugate(collectives.all_gather, _reduce_scatter, "AllGather",
                                     "ReduceScatter")
AllToAll, _ = conjugate(collectives.all_to_all, _exchange_back, "AllToAll")


def copy_to(x: Tensor, comm: Communicator) -> Tensor:
    """I → R: x itself; gradients are summed over the ranks.  On a weight: data parallelism."""
    return CopyTo.apply(x, comm=comm)


def reduce_from(x: Tensor, comm: Communicator) -> Tensor:
    """P → I: the sum of x over the ranks; the gradient goes to everyone as it is."""
    return ReduceFrom.apply(x, comm=comm)


def scatter_to(x: Tensor, comm: Communicator, dim: int = 0) -> Tensor:
    """I → V: this rank's piece of x along `dim`, cut by `chunk_bounds`."""
    return ScatterTo.apply(x, comm=comm, dim=dim % x.ndim, total=x.shape[dim])


def gather_from(x: Tensor, comm: Communicator, dim: int = 0, total: int | None = None) -> Tensor:
    """V → I: all pieces along `dim`, for uses that are the same on every rank.

    `total` is the length of the whole where pieces are uneven; `all_gather` takes it too.
    """
    return GatherFrom.apply(x, comm=comm, dim=dim % x.ndim, total=total or x.shape[dim] * comm.size)


def all_gather(x: Tensor, comm: Communicator, dim: int = 0, total: int | None = None) -> Tensor:
    """V → R: all pieces along `dim`, for uses that differ: their gradients are summed."""
    return AllGather.apply(x, comm=comm, dim=dim % x.ndim, total=total or x.shape[dim] * comm.size)


def reduce_scatter(x: Tensor, comm: Communicator, dim: int = 0) -> Tensor:
    """P → V: this rank's piece along `dim` of the sum of x over the ranks."""
    return ReduceScatter.apply(x, comm=comm, dim=dim % x.ndim, total=x.shape[dim])


def all_to_all(x: Tensor, comm: Communicator, split_dim: int, concat_dim: int) -> Tensor:
    """V → V: cut x along `split_dim`, exchange, join along `concat_dim`."""
    return AllToAll.apply(x, comm=comm, split_dim=split_dim % x.ndim,
                          concat_dim=concat_dim % x.ndim)
