"""FSDP: parameters, gradients and optimizer states are sharded; each unit is gathered for its use.

    memory     ┌──┐  ┌──┐  ┌──┐ │ ┌──┐  ┌──┐          each unit (a block, say) is unsharded before
               │h0│──│h1│──│h2│─│─│h2│──│h1│──        its use and resharded after: two at a time,
    shards   ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁│▁▁▁▁▁▁▁▁▁▁▁▁▁▁       the one in use and the next, on its way
                  forward       │    backward

A unit is one flat parameter, padded to a multiple of p and cut into p equal shards.  A module
unshards its unit before it uses a weight, in forward and again in backward.  The first microbatch
records the order of uses; from then on the next unit is gathered while this one computes
(`prefetch.py`).

For each microbatch a rank sends at most 3Ψ(p-1)/p elements, on rings.  It gathers a unit for
forward, and for backward unless it is still there, and reduce-scatters its gradient.  PyTorch FSDP:
Zhao et al., arXiv 2304.11277.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...autograd import Tensor
from ...backend import Array, record_allocation
from ...backend.mapped_file import page_out
from ...comm import Communicator
from ...comm.collectives import broadcast
from ...nn import Module, Parameter
from ..errors import NO_VALUES_MESSAGE
from ..shards import Shard, check_not_sharded
from ..wire import UNCOMPRESSED, Wire
from .fsdp_unit import FSDPUnit, mark_calls, padded_flat_parameter, unshard_before_use
from .prefetch import Prefetcher, duplicate
from .reducer import ShardedGradients


class FullyShardedDataParallel(ShardedGradients):
    """The strategy that `fully_shard` returns; its `slabs`, for the optimizer, are shards."""

    def __init__(self, model: Module, comm: Communicator, units: Sequence[FSDPUnit],
                 replicate: Communicator | None = None, prefetch: bool = True,
                 wire: Wire = UNCOMPRESSED):
        super().__init__(model, comm, wire)
        self.units = list(units)
        self.slabs: list[Shard] = [flat.shard for unit in units for flat in unit.flats]
        self.shard_comm, self.replicate = self.slabs[0].comm, replicate
        self.prefetcher = Prefetcher(units, self.shard_comm, self._poll, prefetch)
        self.pieces: list[tuple[Shard, Array]] = []     # reduced over shards, not yet over replicas
        self.is_watching = False

    def check_values(self) -> None:
        """The parameters are only shapes by now: `fully_shard` has checked their values."""

    def watch_gradients(self) -> None:
        """Do nothing yet: the outermost strategy does it, in its first `forward_context`."""

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """Context for computing a loss.

        Raises RuntimeError at its end unless all ranks used the same units.
        """
        if not self.is_watching:
            self.reduce_units()
        self.prefetcher.start_microbatch()
        with self.prefetcher.during("forward"):
            yield
        self.prefetcher.check_same_units()

    def reduce_units(self) -> None:
        """Watch and reduce the gradients of the units from now on, the last unit first."""
        self.is_watching = True
        super().watch_gradients()
        flats = [flat for unit in self.units[::-1] for flat in unit.flats]
        self.reduce_to([flat.shard for flat in flats], [flat.gradient for flat in flats],
                       duplicate(self.shard_comm))      # reductions meet no gathers

    def backward(self, loss: Tensor) -> None:
        """Compute and reduce the gradients; the units are unsharded again for it."""
        with self.prefetcher.during("backward"):
            super().backward(loss)
        self.prefetcher.finish_microbatch()

    def on_reduced(self, shard: Shard, piece: Array) -> None:
        """Add a reduced piece to its shard; with replicas, keep it until they are summed."""
        if self.replicate is None or self.replicate.size == 1:
            super().on_reduced(shard, piece)
        else:
            self.pieces.append((shard, record_allocation("communication", piece.copy())))

    def after_backward(self) -> None:
        """Wait for the last reduction, then all-reduce the pieces over the replicas."""
        super().after_backward()
        for shard, piece in self.pieces:
            assert self.replicate is not None
            total = self.wire.all_reduce(self.replicate, piece, key=(shard, "replicas"))
            super().on_reduced(shard, total)
        self.pieces.clear()


def fully_shard(module: Module, comm: Communicator, *, shard: Communicator | None = None,
                replicate: Communicator | None = None, reshard_after_forward: bool = True,
                prefetch: bool = True, wire: Wire = UNCOMPRESSED,
                gather_wire: Wire = UNCOMPRESSED) -> FullyShardedDataParallel:
    """Make the parameters of `module` a unit, sharded over `comm`; return the strategy.

    Call it for each block first and for the whole model last: a unit has the parameters that no
    earlier call has taken.  Rank 0's values are used.

    `shard` and `replicate`: hybrid sharding, over two axes of a mesh; the ranks of `replicate` hold
    the same shard.  `reshard_after_forward=False` keeps this unit gathered until its backward:
    2Ψ instead of 3Ψ are sent.  `wire` encodes gradients, `gather_wire` gathered weights.  Each unit
    keeps its own `reshard_after_forward` and `gather_wire`; `replicate`, `prefetch` and `wire` are
    those of the last call, which returns the strategy.

    Raises ValueError if the module has no values or parameters, if the two axes are not all of
    `comm`, or if its parts were given others.
    """
    shard = shard or comm
    check_axes(comm, shard, replicate)
    parts = [part for _, part in module.named_modules()]
    units: list[FSDPUnit] = [unit for part in parts
                             for unit in part.__dict__.pop("sharded_units", ())]
    check_parts(module, units, shard)
    own = broadcast_outside(module, units, comm)
    if own:
        unit = FSDPUnit([padded_flat_parameter(own, shard)], reshard_after_forward, gather_wire)
        units.insert(0, unit)
        unshard_before_use(parts, unit)
    if not units:
        raise ValueError(f"{type(module).__name__} has no parameters to shard")
    mark_calls(module, units[0])
    module.sharded_units, module.slabs = units, []
    return FullyShardedDataParallel(module, comm, units, replicate, prefetch, wire)


def check_axes(comm: Communicator, shard: Communicator, replicate: Communicator | None) -> None:
    """Raise ValueError unless the ranks of `shard` times those of `replicate` are all of `comm`."""
    num_replicas = replicate.size if replicate else 1
    if shard.size * num_replicas != comm.size:
        raise ValueError(f"shards over {shard.size} ranks and {num_replicas} "
                         f"replicas do not make up {comm.size} ranks: give both axes of a mesh, "
                         'shard=mesh["shard"], replicate=mesh["replicate"]')


def check_parts(module: Module, units: Sequence[FSDPUnit], shard: Communicator) -> None:
    """Raise ValueError if `units`, of parts of the module, are sharded over other ranks."""
    def ranks(comm: Communicator) -> list[int]:
        return [comm.world_rank_of(rank) for rank in range(comm.size)]

    for comm in {unit.flats[0].shard.comm for unit in units} - {shard}:
        if ranks(comm) != ranks(shard):
            raise ValueError(f"a part is sharded over the ranks {ranks(comm)}, "
                             f"{type(module).__name__} over {ranks(shard)}: give every call the "
                             "same shard= and replicate=")


def broadcast_outside(module: Module, units: Sequence[FSDPUnit],
                      comm: Communicator) -> list[tuple[str, Parameter]]:
    """The parameters of the module that are in none of `units`, by name, with rank 0's values.

    Raises ValueError if they have no values, or are cut already.
    """
    taken = {id(p) for unit in units for p in unit.parameters}
    prefix = f"{module.full_name}." if module.full_name else ""
    own = [(prefix + name, p) for name, p in module.named_parameters() if id(p) not in taken]
    check_not_sharded(own)
    if not all(p.initialized for _, p in own):
        raise ValueError(NO_VALUES_MESSAGE)
    for _, p in own:
        broadcast(comm, p.data, out=p.data)
        page_out(p.data)
    return own
