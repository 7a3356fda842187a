"""FSDP: parameters, gradients and optimizer states are sharded; each unit is gathered for its use.

    memory     ┌──┐  ┌──┐  ┌──┐ │ ┌──┐  ┌──┐          each unit (a block, say) is unsharded before
               │h0│──│h1│──│h2│─│─│h2│──│h1│──        its use and resharded after: two at a time,
    shards   ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁│▁▁▁▁▁▁▁▁▁▁▁▁▁▁       the one in use and the next, on its way
                  forward       │    backward

A unit has the parameters of one part of the model; parts that share a weight, a tied embedding and
head, are one unit.  A weight gathers its unit before it is used, in forward and again in backward.
Operations save a note in place of a gathered weight, so that saved arrays do not keep it alive; in
backward the note gathers the unit again.

Each microbatch (with pp: batch) records the order of uses, so the next microbatch knows which unit
comes next.  This unit is gathered while the unit in use computes.  Two units are kept: the one in
use and the next one, or, if the next is not known, the previous one.  So h2 is still there as
backward begins.

                    forward                       │ backward
    in use          embed  h.0   h.1   h.2   head │ head   h.2   h.1   h.0
    being gathered  h.0    h.1   h.2   head   ·   │ ·      h.1   h.0   ·

A flat, a unit's parameters in one slab (flats.py), is reduced as soon as a backward has completed
its gradient, as in ZeRO-2.  For each microbatch a rank sends at most 3Ψ(p-1)/p elements, on rings.
It gathers a unit for forward, and again for backward unless the unit is still there, and
reduce-scatters the unit's gradient.  (The unit of a tied embedding and head is gathered twice in
forward, and not for backward.)  All ranks of dp gather in one order and reduce in one order.
Gathers and reductions have a communicator each, so no two ranks can wait for each other.

HSDP: along the mesh's axis `replicate` ranks have the same pieces.  `finish` calls that of ZeRO-2
(zero2.py), which sums the gradients of the pieces over these ranks.

Outside of a step, weights stay gathered for one call of the model at most: between two evaluations
the pieces may change.  PyTorch FSDP: Zhao et al., arXiv 2304.11277.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np

from ...autograd import Tensor, saved_tensors_hooks
from ...autograd.function import is_recording
from ...backend import Array, allocate_zeros, record_allocation, to_device_of
from ...backend.mapped_file import page_out
from ...backend.views import ViewSpec, view_from_spec, view_spec
from ...comm import Communicator
from ...comm.mesh import DeviceMesh, subset
from ...comm.work import Work, start_work
from ...memory.remat.recompute import is_recomputing
from ...nn import Module, Parameter, Slab
from ...nn.parameter import Unmaterialized
from ..compare_ranks import check_uses
from ..errors import NEEDS_ALL_STAGES_MESSAGE
from ..flats import Flat
from ..wire_formats.wire import UNCOMPRESSED, Wire
from .zero2 import ZeRO2

BY_HAND_ADVICE = ("compute the loss inside `with strategy.forward_context():` and call "
                  "strategy.backward(loss) (or compute without gradients, no_grad())")


class Unit:
    """Flats that are gathered and freed together: those with the parameters of one part.

    `pieces` are this rank's pieces of these flats.  `gather` begins to gather the pieces of all
    ranks into one whole flat, which is made on the device of `like`.
    """

    def __init__(self, flats: Sequence[Flat], pieces: Sequence[Array],
                 gather: Callable[..., Work], like: Array):
        self.flats, self.pieces, self.gather, self.like = flats, pieces, gather, like
        self.members = [(p, segment, i) for i, flat in enumerate(flats)
                       for p, segment in zip(flat.parameters, flat.layout)]
        self.name = self.members[0][1].name
        self.shapes = [Unmaterialized(p.shape, p.dtype) for p, _, _ in self.members]
        self.arrays: list[Array] = []           # the whole flats, while gathered
        self.works: list[Work] = []
        self.reshards = True                     # False: the unit stays gathered until its backward

    def start_gather(self) -> None:
        """Begin to gather the pieces of all ranks, unless that has begun."""
        if not self.arrays:
            self.arrays = [record_allocation("communication", np.empty(
                flat.size, self.like.dtype, like=self.like)) for flat in self.flats]
            for flat, piece, whole in zip(self.flats, self.pieces, self.arrays):
                self.works.append(self.gather(to_device_of(piece, whole), counts=flat.counts,
                                              out=whole))

    def finish_gather(self) -> None:
        """Wait for the gathered flats, and make the parameters views of them."""
        if self.works:
            self._wait()
            page_out(*self.pieces)
            for parameter, segment, i in self.members:
                whole = self.arrays[i][segment.start:segment.stop]
                parameter.data = whole.reshape(segment.shape)

    def free(self) -> None:
        """Let the parameters keep only their shapes."""
        self._wait()
        self.arrays, self.reshards = [], True
        for (parameter, _, _), shape in zip(self.members, self.shapes):
            parameter.data = shape

    def _wait(self) -> None:
        while self.works:
            self.works.pop(0).wait()


def checked_units(model: Module, units: Iterable[Module]) -> list[Module]:
    """The list of `units`, one or several.  Raises ValueError for what is no module of `model`."""
    found, own = [*units] if isinstance(units, Iterable) else [units], {*model.parameters()}
    for unit in found:
        if not (isinstance(unit, Module) and own.issuperset(unit.parameters())):
            raise ValueError(f"units are modules of the model, and a {type(unit).__name__} here is "
                             "none of them: give modules of the model to train, such as [*model.h]")
    return found


class FullyShardedDataParallel(ZeRO2):
    """Everything is sharded: a use of a weight gathers its unit, and the next one ahead.

    `units`, if given, are modules of the model, in any order: the parameters of each make up a
    unit.  A parameter belongs to the innermost of them; parameters in none make up one more unit.
    With `reshard_after_forward=False` units stay gathered until their backward, and a rank sends 2Ψ
    elements instead of 3Ψ.  `gather_wire` encodes the gathered weights.
    """

    uses_two_at_once = False        # True: one operation may use weights of two units

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, *,
                 units: Iterable[Module] | None = None, reshard_after_forward: bool = True,
                 prefetch: bool = True, gather_wire: Wire = UNCOMPRESSED, **options: Any):
        if {"bucket_mb", "first_bucket_mb"} & options.keys():
            raise ValueError("FSDP reduces units, which bucket_mb does not cut: leave it out, or "
                             "choose units=")
        self.unit_modules, self.gather_wire = units and checked_units(model, units), gather_wire
        self.reshard_after_forward, self.prefetch = reshard_after_forward, prefetch
        super().__init__(model, ranks, **options)

    def cut(self, slab: Slab) -> list[Flat]:
        """The flats of a slab: one for each unit, or for each parameter if stages share the slab.
        """
        keys, is_shared = self.unit_keys(), any(slab is s for _, s in self.stages.shared)
        members: dict[Any, list[int]] = {}
        for i, parameter in enumerate(slab.parameters):
            members.setdefault((keys[parameter], i * is_shared), []).append(i)
        return [self.make_flat(slab, here) for here in members.values() or [[]]]

    def unit_keys(self) -> dict[Parameter, Any]:
        """The unit of each parameter: parameters with equal keys are in one."""
        if self.unit_modules is not None:
            place = {p: i for i, p in enumerate(self.model.parameters())}
            units = [tuple(place[p] for p in module.parameters()) for module in self.unit_modules]
            # the innermost has the fewest parameters; of two alike, the first in the model counts
            return {p: min(((len(unit), unit) for unit in units if place[p] in unit), default=None)
                    for p in self.stages.used_in}
        joined: dict[tuple[int, int], frozenset] = {}       # the parts that share a weight
        for uses in self.stages.used_in.values():
            parts = frozenset(uses).union(*(joined.get(use, ()) for use in uses))
            joined |= dict.fromkeys(parts, parts)
        return {p: min(joined[uses[0]]) for p, uses in self.stages.used_in.items()}

    def own_data(self, flat: Flat) -> Array:
        """This rank's piece of the parameters, in memory of its own."""
        mine = flat.mine(flat.slab.data)
        data = allocate_zeros("parameters", self.like, mine.size)
        data[...] = to_device_of(mine, data)
        return data

    def place(self) -> None:
        """Keep this rank's pieces only; watch the uses of weights."""
        super().place()
        keys = self.unit_keys()
        by_unit: dict[tuple[Any, Communicator], list[Flat]] = {}
        for flat in self.flats[::-1]:
            by_unit.setdefault((keys[flat.parameters[0]], flat.comm), []).append(flat)
        # gathers and reductions interleave differently on different ranks: two communicators
        gather = {comm: partial(start_work, self.gather_wire.all_gather, subset(comm, 0))
                  for comm in dict.fromkeys(comm for _, comm in by_unit)}
        self.units = [Unit(flats, [self.piece_of[flat].data for flat in flats], gather[comm],
                           self.like) for (_, comm), flats in by_unit.items()]
        self.unit_of = {p.slot: unit for unit in self.units for p, _, _ in unit.members}
        self.is_inside, self.num_calls = False, 0       # a step; calls of modules, nested
        self.current: Unit | None = None
        self.uses: list[Unit] = []                      # in this microbatch, or batch
        self.last_uses: list[Unit] = []                 # in the one before
        self.free_all()
        for unit in self.units:
            for parameter, _, _ in unit.members:
                parameter.on_use(self.use, first=True)
        for slab in self.stages.whole_slabs:
            slab.drop()
        for module in {self.model, *(m for parts in self.stages.parts for part in parts
                                     for m in part.modules)}:
            module.around(self.around_call)

    def use(self, parameter: Tensor) -> Tensor:
        """Gather a parameter's unit before forward uses it."""
        unit = self.unit_of[parameter.slot]
        # a recomputation runs within backward: `reshards` keeps its value, False only for a unit
        # that has stayed since its forward
        self.unshard(unit, unit.reshards if is_recomputing() else self.reshard_after_forward)
        return parameter

    def unshard(self, unit: Unit, reshards: bool = True) -> None:
        """Gather `unit`, free those that are not needed, begin to gather the next."""
        self.poll()
        if not self.is_inside and not self.num_calls:
            unit.free()                     # used outside of any module: pieces may have changed
        if unit is self.current and unit.arrays:
            return
        before, self.current, after = self.current, unit, None
        if self.is_inside:
            self.uses.append(unit)
            after = self._predict_next() if self.prefetch else None
        elif is_recording():
            raise RuntimeError("weights of a sharded model are used where their gradients would "
                               "be lost: " + (BY_HAND_ADVICE if self.pp.size == 1 else
                                              NEEDS_ALL_STAGES_MESSAGE))
        elif not self.uses_two_at_once:
            before = None
        self._free_others(unit, after or before)
        unit.start_gather()
        unit.finish_gather()
        unit.reshards = reshards or not self.is_inside
        if after is not None:
            after.start_gather()

    def _predict_next(self) -> Unit | None:
        """The unit that followed these uses last time, if all uses so far were the same."""
        done, last = len(self.uses), self.last_uses
        return last[done] if done < len(last) and last[:done] == self.uses else None

    def _free_others(self, *wanted: Unit | None) -> None:
        """Free the units that are neither wanted nor kept until their backward."""
        for unit in self.units:
            if unit.arrays and unit not in wanted and unit.reshards:
                unit.free()

    def free_all(self) -> None:
        """Free all that is gathered."""
        self.current = None
        for unit in self.units:
            unit.free()

    @contextmanager
    def batch_context(self) -> Iterator[None]:
        """Context of a step's forwards and backwards: operations save notes, not weights."""
        if not self.uses:                   # the first forward of a step: what is gathered is from
            self.free_all()                 # an evaluation, and pieces may have changed since
        self.is_inside = True
        try:
            with saved_tensors_hooks(self._note, lambda kept: kept() if callable(kept) else kept):
                yield
        finally:
            self.is_inside = False

    def around_call(self, forward: Callable, *inputs: Any, **options: Any) -> Any:
        """Run a module's forward; outside of a step, the outermost call gathers anew."""
        if not self.is_inside and not self.num_calls:
            self.free_all()
        self.num_calls += 1
        try:
            return forward(*inputs, **options)
        finally:
            self.num_calls -= 1

    def _note(self, array: Array) -> Any:
        """What an operation saves: for a gathered weight, a function that gathers it again."""
        for unit in self.units:
            for i, whole in enumerate(unit.arrays):
                view = view_spec(array, whole)
                if view is not None:
                    return partial(self._gather_again, unit, i, view)
        return array

    def _gather_again(self, unit: Unit, i: int, view: ViewSpec) -> Array:
        self.unshard(unit)
        return view_from_spec(unit.arrays[i], view)

    def forward_context(self) -> AbstractContextManager:
        """Context for computing a loss; the list of used units, `uses`, begins anew."""
        self.uses = []
        return super().forward_context()

    def backward(self, loss: Tensor) -> None:
        """Compute and reduce the gradients; the units are gathered again for it.

        Raises RuntimeError, on every rank, unless all ranks used the same units in forward.
        """
        if self.pipeline is None:
            self.check_same_units()
        super().backward(loss)

    def finish(self) -> None:
        """Wait for the reductions, and expect the next microbatch to use the same units."""
        super().finish()
        if self.pipeline is not None:
            self.check_same_units()
        self.last_uses, self.uses = self.uses, []
        self.free_all()

    def parameters_changed(self) -> None:
        """Free what is gathered: the next use of a weight gathers it anew."""
        self.free_all()

    def check_same_units(self) -> None:
        """Raise RuntimeError, on every rank, unless the ranks that gather used the same units."""
        check_uses([unit.name for unit in self.uses], self.along(*self.summed_over))


class ZeRO3(FullyShardedDataParallel):
    """ZeRO-3: every weight is a unit of its own, gathered by itself, and none ahead.

    For m microbatches a rank sends at most 3mΨ(p-1)/p elements.  `zero3_by_autograd.py` is the
    specification.  Rajbhandari et al. 2020, section 5.3.
    """

    uses_two_at_once = True         # a weight and its bias

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, **options: Any):
        super().__init__(model, ranks, prefetch=False, **options)

    def unit_keys(self) -> dict[Parameter, int]:
        """A number of its own for each parameter."""
        return {parameter: i for i, parameter in enumerate(self.stages.used_in)}
