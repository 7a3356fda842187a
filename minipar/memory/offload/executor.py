"""Executes decisions for each part: keep, recompute, offload, or offload the input of what is
recomputed.

    part i    what it saves ─▶ a load of storages ─▶ copy out ─▶ ┄ host ┄ ─▶ copy in ─▶ its backward

Where `offload.py` moves array by array as they come, here a part's arrays move together and at
times that follow from the order of the parts alone (`timeline.py` has the rules, and the time that
they take).  So what is alive at the peak is known before, to the byte.

Between two parts stands a mark in the graph: where backward comes by, it is through with what is
behind it, and about to enter what is before it.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...autograd import Tensor, saved_tensors_hooks
from ...autograd.function import Function, is_recording
from ...autograd.saved import SavedArray, current_saved_tensors_hooks
from ...backend import Array, is_gpu, is_host, record_allocation
from ...backend.copy_stream import CopyStream
from ...backend.views import flat_view, storage, view_from_spec, view_spec
from ...nn import Module
from ...nn.chain import chain
from ..remat.recompute import checkpoint
from .timeline import OFFLOAD, OFFLOAD_INPUT, RECOMPUTE


class Mark(Function):
    """The end of a part: `passed()` is called when backward comes by."""

    metered = False

    @staticmethod
    def forward(ctx, x, passed):
        """Nothing happens to x."""
        ctx.passed = passed
        return x

    @staticmethod
    def backward(ctx, grad):
        """Nor to its gradient."""
        ctx.passed()
        return [grad]


class Moved:
    """A storage that moves: `here` on the device (through the hooks outside), or `outside`."""

    __slots__ = ("here", "outside", "like", "__weakref__")

    def __init__(self, flat: Array, hooks: Any):
        self.here: SavedArray | None = SavedArray(flat, hooks)
        self.outside: Array | None = None
        self.like = np.empty_like(flat, shape=0)


class View(NamedTuple):
    """In place of a saved array: which part of which storage it was."""

    moved: Moved
    place: tuple


class Load:
    """What one part saves, and moves together.  Storages that nobody wants any more are forgotten.
    """

    def __init__(self, how: "DecisionExecutor"):
        self.how, self.hooks, self.open = how, current_saved_tensors_hooks(), False
        self.found: weakref.WeakValueDictionary[int, Moved] = weakref.WeakValueDictionary()
        self.leaving: list[tuple[Moved, Any]] = []
        self.coming: list[tuple[Moved, Any]] | None = None

    def pack(self, array: Array) -> View | SavedArray:
        """A hook: part of the load, unless it stays; what backward computes again does."""
        owner = storage(array)
        if self.open and (is_host(array) or is_gpu(array)) and id(owner) not in self.how.stays:
            flat = flat_view(owner)
            place = view_spec(array, flat)
            if place is not None:                       # else its memory has gaps
                moved = self.found.get(id(owner))       # which holds the owner, so the id is its
                if moved is None:
                    moved = self.found[id(owner)] = Moved(flat, self.hooks)
                return View(moved, place)
        return SavedArray(array, self.hooks)

    def unpack(self, item: View | SavedArray) -> Array:
        """A hook: the array."""
        if isinstance(item, SavedArray):
            return item()
        return view_from_spec(item.moved.here(), item.place)

    def leave(self) -> None:
        """Begin to copy out."""
        self.open = False
        for moved in list(self.found.values()):
            flat = moved.here()
            moved.outside = record_allocation("offloaded", self.how.empty(flat.shape, flat.dtype))
            self.leaving.append((moved, self.how.out.copy(flat, moved.outside)))
        self.how.out.begin()

    def wait_out(self) -> None:
        """Wait until all has left: its memory is free."""
        for moved, copy in self.leaving:
            self.how.out.wait(copy)
            moved.here = None
        self.leaving = []

    def come(self) -> None:
        """Begin to copy in, unless that has begun."""
        if self.coming is None:
            self.wait_out()
            self.coming = []
            for moved in list(self.found.values()):
                flat = np.empty_like(moved.like, shape=moved.outside.shape)
                moved.here = SavedArray(flat, self.hooks)
                self.coming.append((moved, self.how.back.copy(moved.outside, flat)))

    def wait_in(self) -> None:
        """Wait until all is there."""
        coming, self.coming = self.coming, []
        for moved, copy in coming:
            self.how.back.wait(copy)
            moved.outside = None


class DecisionExecutor:
    """Runs parts as `decisions` say, moving what is offloaded to `empty(shape, dtype)`, arrays of
    the host, and back, on the lanes `out` and `back`, such as those of `comm.copy_lane`.

    `stays`: tensors that live on in any case, the parameters.  Weights that are gathered for one
    use would be moved like activations: not for FSDP and ZeRO-3.  Backward must not be deferred.
    """

    def __init__(self, decisions: Sequence[str], empty: Callable[[Any, Any], Array],
                 stays: Iterable[Tensor] = (), out: CopyStream | None = None,
                 back: CopyStream | None = None, ahead: int = 1):
        self.decisions, self.empty, self.ahead = tuple(decisions), empty, ahead
        self.out, self.back = out or CopyStream(), back or CopyStream()
        self.stays = {id(owner): owner for owner in (storage(p.data) for p in stays)}

    def run_parts(self, parts: Sequence[Callable], x: Any) -> Tensor:
        """Apply the parts, the loss being the last, to x, one after the other.

        Raises ValueError if there are not as many as decisions.
        """
        if len(parts) != len(self.decisions):
            raise ValueError(f"{len(self.decisions)} decisions for {len(parts)} parts: decide for "
                             "each one, and for the loss")
        loads: list[Load] = []
        for i, (part, decision) in enumerate(zip(parts, self.decisions)):
            if not is_recording():
                x = part(x)
                continue
            loads.append(load := Load(self))
            with load_hooks(load, decision):
                x = checkpoint(part, x) if decision in (RECOMPUTE, OFFLOAD_INPUT) else part(x)
            if i >= self.ahead:
                loads[i - self.ahead].wait_out()
            load.leave()
            x = Mark.apply(x, passed=partial(self._arrive, loads, i))
        return x

    def _arrive(self, loads: list[Load], i: int) -> None:
        """Backward is about to enter part i."""
        for j in range(i, max(-1, i - self.ahead - 1), -1):
            loads[j].come()
        loads[i].wait_in()


def load_hooks(load: Load, decision: str) -> AbstractContextManager:
    """Context in which what the part saves belongs to the load."""
    if decision not in (OFFLOAD, OFFLOAD_INPUT):
        return nullcontext()
    load.open = True
    return saved_tensors_hooks(load.pack, load.unpack, nested=False)


def parts_and_loss(model: Module, targets: Array,
                   num_targets: float | None = None) -> list[Callable[[Any], Tensor]]:
    """The parts of a model and, as the last, its loss: what decisions are made for."""
    return [*chain(model), lambda logits: model.criterion(logits, targets, num_targets)]


def apply_decisions(model: Module, how: DecisionExecutor) -> Module:
    """Change `model`, from outside: `model.loss` runs its parts and the loss by `how`."""
    model.loss = lambda x, targets, num_targets=None: how.run_parts(
        parts_and_loss(model, targets, num_targets), x)
    return model
