"""FSDP: parameters, gradients and optimizer states live in shards; weights are gathered for a use.

    memory     ┌──┐  ┌──┐  ┌──┐ │ ┌──┐  ┌──┐          each unit (a block, say) is gathered before it
               │h0│──│h1│──│h2│─│─│h2│──│h1│──        is used and released after: two at a time,
    shards   ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁│▁▁▁▁▁▁▁▁▁▁▁▁▁▁       the one in use and the next, on its way
                  forward       │    backward

A unit is one flat run of parameters, padded to a multiple of p and cut into p equal shards.  Who
uses a weight calls for its unit (`transform_parameters`); what an operation saves of a weight is a
note of where it was, and calls for the unit again in backward: gathered weights do not stay alive.
The order of uses is noted in the first step, and from then on the next unit is gathered while this
one computes.

A rank sends at most 3Ψ(p-1)/p elements: a unit is gathered for forward, and for backward unless it
is still there, and its gradient reduce-scattered.  PyTorch FSDP: Zhao et al., arXiv 2304.11277.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..autograd import Tensor, saved_tensors_hooks
from ..autograd.function import is_recording
from ..backend import Array, allocated, place_in, view_of
from ..comm import Communicator
from ..comm.collectives import all_reduce, broadcast
from ..nn import Module
from ..optim import Optimizer
from .data import check_uses
from .sharded import ShardedGradients
from .shards import Shard
from .unit import Unit


class Place(NamedTuple):
    """What an operation keeps of a weight: where it was."""

    unit: Unit
    place: tuple


class FullyShardedDataParallel(ShardedGradients):
    """Made by `fully_shard`; `slabs` are the shards, for the optimizer."""

    def __init__(self, model: Module, comm: Communicator, units: Sequence[Unit],
                 replicate: Communicator | None, prefetch: bool):
        self.model, self.comm, self.units = model, comm, list(units)
        self.slabs = [unit.shard for unit in units]
        self.shard_comm, self.replicate, self.prefetch = units[0].shard.comm, replicate, prefetch
        for unit in units:
            unit.on_use = self.use
        self.synchronizing, self._asked = True, None
        self.gather_comm = self.phase = self.current = None
        self.uses: list[Unit] = []              # in this forward and backward
        self.plan: list[Unit] = []              # in the one before
        self.pieces: list[tuple[Shard, Array]] = []

    def _prepare(self) -> None:
        """Before the first use: communicators on which gathers and reductions do not meet."""
        if self.gather_comm is None:
            self.gather_comm = self.shard_comm.split(0)
            backwards = self.units[::-1]
            self.watch([unit.shard for unit in backwards], [unit.gradient for unit in backwards],
                       self.shard_comm.split(0))

    @contextmanager
    def forward(self) -> Iterator[None]:
        """See Strategy.  Raises RuntimeError at its end unless all ranks used the same units."""
        for unit in self.units:
            unit.pinned = False
            unit.release()
        self.phase, self.current, self.uses = "forward", None, []
        try:
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self.phase = None
        check_uses([unit.layout[0].name for unit in self.uses], self.shard_comm)

    def backward(self, loss: Tensor) -> None:
        """See Strategy."""
        self.phase = "backward"
        try:
            super().backward(loss)
        finally:
            self.phase = None
        self.plan = self.uses
        for unit in self.units:
            unit.release()

    def step(self, optimizer: Optimizer) -> None:
        """See Strategy."""
        super().step(optimizer)
        for unit in self.units:             # what an evaluation gathered has old values now
            unit.release()

    def use(self, unit: Unit) -> None:
        """Have `unit` here, release what is not needed, and begin to gather what comes next."""
        self._move_on()
        if unit is self.current and unit.full is not None:
            return
        self._prepare()
        before, self.current = self.current, unit
        if self.phase is None:
            if is_recording():
                raise RuntimeError("weights of a sharded model are used where their gradients "
                                   "would be lost: compute the loss inside "
                                   "`with strategy.forward():` and call strategy.backward(loss) "
                                   "(or compute without gradients, no_grad())")
            self._make_room(unit)
            unit.gather(self.gather_comm)
            return
        self.uses.append(unit)
        unit.pinned = unit.stays and self.phase == "forward"
        after = self._expected() if self.prefetch else None
        self._make_room(unit, after or before)
        unit.gather(self.gather_comm)
        if after is not None:
            after.start_gather(self.gather_comm)

    def _expected(self) -> Unit | None:
        """What followed these uses in the step before, if that began in the same way."""
        done = len(self.uses)
        return self.plan[done] if self.plan[:done] == self.uses != self.plan else None

    def _make_room(self, *wanted: Unit | None) -> None:
        for unit in self.units:
            if unit.full is not None and unit not in wanted and not unit.pinned:
                unit.release()

    def _pack(self, array: Array) -> Any:
        for unit in self.units:
            if unit.full is not None and (place := place_in(array, unit.full)) is not None:
                return Place(unit, place)
        return array

    def _unpack(self, kept: Any) -> Array:
        if not isinstance(kept, Place):
            return kept
        self.use(kept.unit)
        return view_of(kept.unit.full, kept.place)

    def keep(self, shard: Shard, piece: Array) -> None:
        """See ShardedGradients: with replicas, the sum over them is still to come."""
        if self.replicate is None or self.replicate.size == 1:
            shard.add(piece)
        else:
            self.pieces.append((shard, allocated("communication", piece.copy())))

    def finish(self) -> None:
        """See Strategy."""
        super().finish()
        for shard, piece in self.pieces:
            shard.add(all_reduce(self.replicate, piece, out=piece))
        self.pieces.clear()


def fully_shard(module: Module, comm: Communicator, *, shard: Communicator | None = None,
                replicate: Communicator | None = None, reshard_after_forward: bool = True,
                prefetch: bool = True) -> FullyShardedDataParallel:
    """Make the parameters of `module` a unit, sharded over `comm`; the strategy to train with.

    Call it for the parts first (each block) and for the whole model last: a unit is what no part
    has taken.  Hybrid sharding: a unit is sharded over the ranks `shard`, and `replicate` are those
    that hold the same shard, which they then all-reduce.  `reshard_after_forward=False` keeps this
    unit gathered until its backward: 2Ψ instead of 3Ψ are sent.  Rank 0's values are taken.  Raises
    ValueError if the module has no numbers or parameters, if the two axes are not all of `comm`, or
    if its parts were given others.
    """
    shard = shard or comm
    if shard.size * (replicate.size if replicate else 1) != comm.size:
        raise ValueError(f"shards over {shard.size} ranks and {replicate.size if replicate else 1} "
                         f"replicas do not make up {comm.size} ranks: give both axes of a mesh, "
                         'shard=mesh["shard"], replicate=mesh["replicate"]')
    parts = [part for _, part in module.named_modules()]
    inner = [unit for part in parts for unit in part.__dict__.pop("sharded_units", ())]
    for num_ranks in {unit.shard.comm.size for unit in inner} - {shard.size}:
        raise ValueError(f"parts are sharded over {num_ranks} ranks, {type(module).__name__} over "
                         f"{shard.size}: give every call the same shard= and replicate=")
    taken = {id(p) for unit in inner for p in unit.parameters}
    prefix = f"{module.full_name}." if module.full_name else ""
    own = [(prefix + name, p) for name, p in module.named_parameters() if id(p) not in taken]
    units = list(inner)
    if own:
        if not all(p.initialized for _, p in own):
            raise ValueError("the model has no numbers: call model.initialize(seed) first, and "
                             "give it to one strategy only")
        for _, p in own:
            broadcast(comm, p.data, out=p.data)
        unit = Unit(own, shard, not reshard_after_forward)
        units.insert(0, unit)
        for part in parts:
            if any(p.slot in unit.slots for p in part._parameters.values()):
                part._transforms.append(unit.call)
    if not units:
        raise ValueError(f"{type(module).__name__} has no parameters to shard")
    module.sharded_units, module.slabs = units, []
    return FullyShardedDataParallel(module, comm, units, replicate, prefetch)
