"""Which units of FSDP are gathered: the one in use, and the next one, on its way.

    uses       embed  h.0  h.1  h.2  head │ h.2  h.1  h.0     noted in one step, and in the next
    gathered   ▓▓▓▓▓  ▒▒▒▒ ▓▓▓▓ ▒▒▒▒ ▓▓▓▓ │ ▒▒▒▒ ▓▓▓▓ ▒▒▒▒    known ahead of time

Who uses a weight calls for its unit; what an operation saves of a weight is a note of where it was,
and calls for the unit again in backward: gathered weights do not stay alive.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...autograd import saved_tensors_hooks
from ...autograd.function import is_recording
from ...backend import Array
from ...comm import Communicator
from ...memory.remat.recompute import is_recomputing
from ..data.graph import check_uses
from .fsdp_unit import FSDPUnit


class Place(NamedTuple):
    """What an operation keeps of a weight: where it was."""

    unit: FSDPUnit
    place: tuple


BY_HAND = ("compute the loss inside `with strategy.forward_context():` and call "
           "strategy.backward(loss)")


class Prefetcher:
    """Gathers `units` over `comm` when they are used, or a use ahead, with `prefetch`.

    `move_on` lets messages that are under way go on; `mend` says how to compute a loss.
    """

    def __init__(self, units: Sequence[FSDPUnit], comm: Communicator, move_on: Callable[[], None],
                 prefetch: bool = True, mend: str = BY_HAND):
        self.units, self.comm, self.move_on, self.prefetch = list(units), comm, move_on, prefetch
        self.mend = mend
        self.own_comm: Communicator | None = None       # on which nothing else is sent
        self.phase: str | None = None           # "forward", "backward", "both"; None: outside
        self.current: FSDPUnit | None = None
        self.uses: list[FSDPUnit] = []              # in this step
        self.plan: list[FSDPUnit] = []              # in the one before
        for unit in units:
            unit.on_use = self.use

    def begin(self) -> None:
        """A step begins: nothing is here, nothing was used."""
        for unit in self.units:
            unit.pinned = False
        self.release()
        self.current, self.uses = None, []

    def end(self) -> None:
        """A step ends: the next one is expected to use the same."""
        self.plan = self.uses
        self.release()

    def release(self) -> None:
        """Forget all that is gathered."""
        for unit in self.units:
            unit.release()

    def check_uses(self) -> None:
        """Raise RuntimeError, on every rank, unless all ranks used the same units so far."""
        check_uses([unit.names[0] for unit in self.uses], self.comm)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Context of a part of the step, in which notes are saved instead of weights."""
        self.phase = phase
        try:
            with saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self.phase = None

    def use(self, unit: FSDPUnit) -> None:
        """Have `unit` here, release what is not needed, and begin to gather what comes next."""
        self.move_on()
        if unit is self.current and unit.full is not None:
            return
        if self.own_comm is None:
            self.own_comm = self.comm.split(0)
        before, self.current = self.current, unit
        if self.phase is None:
            if is_recording():
                raise RuntimeError("weights of a sharded model are used where their gradients "
                                   f"would be lost: {self.mend} (or compute without gradients, "
                                   "no_grad())")
            self._reshard_others(unit)
            unit.gather(self.own_comm)
            return
        self.uses.append(unit)
        until_backward = self.phase == "forward" or unit.pinned and is_recomputing()
        unit.pinned = unit.stays and until_backward
        after = self._predict_next() if self.prefetch else None
        self._reshard_others(unit, after or before)
        unit.gather(self.own_comm)
        if after is not None:
            after.start_gather(self.own_comm)

    def _predict_next(self) -> FSDPUnit | None:
        """What followed these uses in the step before, if that began in the same way."""
        done = len(self.uses)
        return self.plan[done] if self.plan[:done] == self.uses != self.plan else None

    def _reshard_others(self, *wanted: FSDPUnit | None) -> None:
        for unit in self.units:
            if unit.full is not None and unit not in wanted and not unit.pinned:
                unit.release()

    def _pack(self, array: Array) -> Any:
        for unit in self.units:
            if unit.full is not None and (found := unit.find(array)) is not None:
                return Place(unit, found)
        return array

    def _unpack(self, kept: Any) -> Array:
        if not isinstance(kept, Place):
            return kept
        self.use(kept.unit)
        return kept.unit.view(kept.place)
