"""Prefetch: unshard a unit of FSDP while the unit before it computes.

                    forward                       │ backward
    in use          root   h.0   h.1   h.2   root │ h.2   h.1   h.0
    being gathered  h.0    h.1   h.2   root  ·    │ h.1   h.0   ·

The root unit has the embedding and the head, every other unit a block.  The first microbatch
records the order of uses, of forward and backward; from the second one on, the unit that comes next
is gathered ahead.  At most two units are unsharded at a time: the unit in use, and the next one.
In the first microbatch the next unit is not known; the second unit is then the previous one.  So
h.2 is still there when backward begins with it.  (·: h.2 is there already, nothing is gathered.)

A module unshards its unit before it uses a weight.  Operations save a note in place of a gathered
weight, so that saved arrays do not keep it alive; in backward the note unshards the unit again.

Outside of a step, weights stay gathered for one call of the model at most: between two evaluations
the shards may change.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...autograd import saved_tensors_hooks
from ...autograd.function import is_recording
from ...backend import Array
from ...comm import Communicator
from ...memory.remat.recompute import is_recomputing
from ..replicas import check_uses
from .fsdp_unit import FSDPUnit

BY_HAND_ADVICE = ("compute the loss inside `with strategy.forward_context():` and call "
                  "strategy.backward(loss)")


class SavedWeight(NamedTuple):
    """The note that an operation saves in place of a gathered weight."""

    unit: FSDPUnit
    place: tuple


def duplicate(comm: Communicator) -> Communicator:
    """Collective.  A communicator of the same ranks, whose messages meet no others."""
    own = comm.split(0)
    assert own is not None
    own.axes = comm.axes        # as timelines name them
    return own


class Prefetcher:
    """Unshards `units` over `comm` before their use; with `prefetch`, one use ahead.

    `poll` advances pending messages.  `remedy` says what to do, in the error about weights that are
    used outside of `during`.
    """

    def __init__(self, units: Sequence[FSDPUnit], comm: Communicator, poll: Callable[[], None],
                 prefetch: bool = True, remedy: str = BY_HAND_ADVICE):
        self.units, self.comm, self.poll, self.prefetch = list(units), comm, poll, prefetch
        self.remedy = remedy
        self._own_comm: Communicator | None = None
        self.phase: str | None = None       # "forward", "backward", "whole batch"; None: outside
        self.num_calls = 0                  # of modules, one inside the other, that are running
        self.current: FSDPUnit | None = None
        self.uses: list[FSDPUnit] = []              # in this microbatch so far
        self.last_uses: list[FSDPUnit] = []         # in the microbatch before
        for unit in units:
            unit.on_use, unit.during_call = self.use, self.during_call

    @property
    def own_comm(self) -> Communicator:
        """A communicator of the same ranks, made at the first use, for gathers alone."""
        if self._own_comm is None:
            self._own_comm = duplicate(self.comm)
        return self._own_comm

    def start_microbatch(self) -> None:
        """Begin a microbatch: all units are sharded, none was used."""
        for unit in self.units:
            unit.keep_unsharded = False
        self.reshard()
        self.current, self.uses = None, []

    def finish_microbatch(self) -> None:
        """End a microbatch: the next one is expected to use the same units."""
        self.last_uses = self.uses
        self.reshard()

    def reshard(self) -> None:
        """Free all that is gathered."""
        for unit in self.units:
            unit.reshard()

    def check_same_units(self) -> None:
        """Raise RuntimeError, on every rank, unless all ranks used the same units."""
        check_uses([unit.names[0] for unit in self.uses], self.comm)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Context of a phase of a microbatch: operations save notes instead of weights."""
        self.phase = phase
        try:
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self.phase = None

    @contextmanager
    def during_call(self) -> Iterator[None]:
        """Context of a module's call: outside of a step, the outermost one gathers anew."""
        if self.phase is None and not self.num_calls:
            self.reshard()
        self.num_calls += 1
        try:
            yield
        finally:
            self.num_calls -= 1

    def use(self, unit: FSDPUnit) -> None:
        """Unshard `unit`, reshard the units that are not needed, begin to unshard the next."""
        self.poll()
        if self.phase is None and not self.num_calls:
            unit.reshard()          # a weight that is used by itself
        if unit is self.current and unit.unsharded is not None:
            return
        before, self.current = self.current, unit
        if self.phase is None:
            if is_recording():
                raise RuntimeError("weights of a sharded model are used where their gradients "
                                   f"would be lost: {self.remedy} (or compute without gradients, "
                                   "no_grad())")
            self._reshard_others(unit)
            unit.unshard(self.own_comm)
            return
        self.uses.append(unit)
        # a recomputation repeats a forward, whose backward follows at once: a unit that forward
        # kept unsharded stays so
        is_forward = self.phase == "forward" or (unit.keep_unsharded and is_recomputing())
        unit.keep_unsharded = is_forward and not unit.reshard_after_forward
        after = self._predict_next() if self.prefetch else None
        self._reshard_others(unit, after or before)
        unit.unshard(self.own_comm)
        if after is not None:
            after.start_unshard(self.own_comm)

    def _predict_next(self) -> FSDPUnit | None:
        """The unit that followed these uses last time, if that microbatch began in the same way."""
        done, last = len(self.uses), self.last_uses
        return last[done] if done < len(last) and last[:done] == self.uses else None

    def _reshard_others(self, *wanted: FSDPUnit | None) -> None:
        for unit in self.units:
            if unit.unsharded is not None and unit not in wanted and not unit.keep_unsharded:
                unit.reshard()

    def _pack(self, array: Array) -> Any:
        for unit in self.units:
            if unit.unsharded is not None and (found := unit.find(array)) is not None:
                return SavedWeight(unit, found)
        return array

    def _unpack(self, saved: Any) -> Array:
        if not isinstance(saved, SavedWeight):
            return saved
        self.use(saved.unit)
        return saved.unit.view(saved.place)
