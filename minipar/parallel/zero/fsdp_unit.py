"""An FSDP unit: parameters that are unsharded and resharded together, end to end in one array.

    sharded     ▁▁▁ piece: 1/p on each rank             parameters are shapes without values
    unsharded   ███████████ the pieces of all ranks     parameters are views of it

A unit that is made inside `backend.allocating_with` keeps its pieces and their gradients elsewhere:
in a file, or on the host beside a GPU.  It is unsharded where the parameters were.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from ...backend import Array, allocate_zeros, record_allocation, to_device_of
from ...backend.mapped_file import page_out
from ...backend.views import view_from_spec, view_spec
from ...comm import Communicator
from ...comm.work import Work, start_work
from ...nn import Module, Parameter
from ...nn.parameter import Unmaterialized
from ...nn.slab import Segment
from ..shards import Shard
from ..wire import UNCOMPRESSED, Wire
from .reducer import TransientGradient


class FlatParameter:
    """Parameters end to end in one array, cut into pieces; `shard` is this rank's.

    `piece` is the data of the shard, perhaps with padding; `lengths` are of all ranks' pieces.  The
    flat parameter is unsharded where `like` is.  As FlatParameter in PyTorch's first FSDP.
    """

    def __init__(self, shard: Shard, piece: Array, lengths: Sequence[int], like: Array):
        self.shard, self.piece, self.lengths = shard, piece, list(lengths)
        self.like = np.empty(0, like.dtype, like=like)
        self.gradient = TransientGradient(shard.parameters, shard.layout, self.like)
        page_out(piece, shard.grad)


def padded_flat_parameter(named: Sequence[tuple[str, Parameter]],
                          comm: Communicator) -> FlatParameter:
    """The parameters as a flat one, padded to a multiple of p and cut into p equal pieces."""
    layout, size = [], 0
    for name, p in named:
        box = tuple((0, n) for n in p.shape)
        layout.append(Segment(name, size, size + p.size, box, p.shape))
        size += p.size
    length = -(-size // comm.size)                      # of a piece, with its padding
    bounds = [(min(r * length, size), min((r + 1) * length, size)) for r in range(comm.size)]
    begin, end = bounds[comm.rank]
    flat = np.concatenate([p.data.reshape(p.size) for _, p in named])
    padded = allocate_zeros("parameters", flat, length)
    padded[:end - begin] = flat[begin:end]
    grad = allocate_zeros("gradients", padded)
    shard = Shard([p for _, p in named], layout, comm, bounds, padded[:end - begin],
                  grad[:end - begin])
    return FlatParameter(shard, padded, [length] * comm.size, flat)


class FSDPUnit:
    """Runs of parameters that are unsharded and resharded together.

    With `reshard_after_forward=False` they stay unsharded between forward and backward.  `wire`
    encodes the pieces that are gathered, over `own_comm` if it is given.
    """

    def __init__(self, flats: Sequence[FlatParameter], reshard_after_forward: bool = True,
                 wire: Wire = UNCOMPRESSED, own_comm: Communicator | None = None):
        self.flats = list(flats)
        self.reshard_after_forward = reshard_after_forward
        self.keep_unsharded = False
        self.wire, self.own_comm = wire, own_comm
        self.places = [(parameter, segment) for flat in flats
                       for parameter, segment in zip(flat.shard.parameters, flat.shard.layout)]
        self.parameters = [parameter for parameter, _ in self.places]
        self.names = [segment.name for _, segment in self.places]
        self.slots = {p.slot for p in self.parameters}
        self.shapes = [Unmaterialized(p.shape, p.dtype) for p in self.parameters]
        self.unsharded: list[Array] | None = None   # each with its padding; None while sharded
        self.pending: Work | None = None            # the all-gather under way
        # set by the Prefetcher
        self.on_use: Callable[[FSDPUnit], None]
        self.during_call: Callable[[], AbstractContextManager]
        self.reshard()

    def before_use(self, parameter: Parameter) -> Parameter:
        """A transform of parameters: unshard the unit before one of its parameters is used."""
        if parameter.slot in self.slots:
            self.on_use(self)
        return parameter

    def start_unshard(self, comm: Communicator) -> None:
        """Begin to gather the pieces of all ranks, unless that has begun."""
        comm = self.own_comm or comm
        if self.unsharded is None:
            arrays = [np.empty(sum(flat.lengths), flat.like.dtype, like=flat.like)
                      for flat in self.flats]
            self.unsharded = [record_allocation("communication", array) for array in arrays]
            self.pending = start_work(_gather_all, comm, self.wire, self.flats, self.unsharded)

    def unshard(self, comm: Communicator) -> None:
        """Gather the pieces of all ranks; make the parameters views of them."""
        self.start_unshard(comm)
        if self.pending is not None:
            self.pending.wait()
            self.pending = None
            arrays = [array for flat, array in zip(self.flats, self.unsharded or ())
                      for _ in flat.shard.layout]
            for (p, s), array in zip(self.places, arrays):
                p.data = array[s.start:s.stop].reshape(s.shape)

    def reshard(self) -> None:
        """Free the gathered pieces: the parameters keep only their shapes."""
        if self.pending is not None:
            self.pending.wait()
        self.unsharded = self.pending = None
        for p, shape in zip(self.parameters, self.shapes):
            p.data = shape

    def find(self, array: Array) -> tuple | None:
        """The place of `array` in the unsharded parameters; None if it is no view of them."""
        for i, whole in enumerate(self.unsharded or ()):
            place = view_spec(array, whole)
            if place is not None:
                return i, place
        return None

    def view(self, found: tuple) -> Array:
        """The array at a place that `find` returned, after the unit was unsharded again."""
        i, place = found
        assert self.unsharded is not None
        return view_from_spec(self.unsharded[i], place)


def _gather_all(comm: Communicator, wire: Wire, flats: Sequence[FlatParameter],
                out: Sequence[Array]) -> None:
    for flat, whole in zip(flats, out):
        wire.all_gather(comm, to_device_of(flat.piece, flat.like), flat.lengths, whole)
        page_out(flat.piece)


def unshard_before_use(modules: Sequence[Module], unit: FSDPUnit) -> None:
    """Unshard the unit whenever one of `modules` uses a parameter of it."""
    for module in modules:
        if any(p.slot in unit.slots for p in module._parameters.values()):
            module._transforms.insert(0, unit.before_use)


def mark_calls(module: Module, unit: FSDPUnit) -> None:
    """Run `forward` of a module, whose parameters are in units as `unit`, inside `during_call`."""
    own = module.__dict__.get("forward")        # of mixed precision, say
    module.__dict__["forward"] = partial(_call, module, own, unit)


def _call(module: Module, own: Callable | None, unit: FSDPUnit, *inputs: Any,
          **options: Any) -> Any:
    with unit.during_call():
        return own(*inputs, **options) if own else type(module).forward(module, *inputs, **options)
