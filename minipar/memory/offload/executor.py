"""Execute decisions for the parts of a model: keep, recompute, offload, or offload the input only.

    part i    saved arrays ─▶ one transfer ─▶ copy out ─▶ ┄ host ┄ ─▶ copy in ─▶ its backward

`activations.py` copies each array when it is saved.  Here all arrays of a part move together, at
times that follow from the order of the parts alone.  So the peak of memory is known beforehand, to
the byte.  (`timeline.py` has the rules, and the time that the copies take.)  If only the input of a
part is offloaded, backward recomputes the rest of what the part saves.

The graph has a mark after each part.  When backward reaches the mark of a part, it has finished all
later parts and is about to enter this one.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...autograd import Tensor, saved_tensors_hooks
from ...autograd.function import Function, is_recording
from ...autograd.saved import SavedArray, current_saved_tensors_hooks, unchanging
from ...backend import Array, is_gpu, is_host, record_allocation
from ...backend.copy_stream import CopyStream
from ...backend.views import flat_view, storage, view_from_spec, view_spec
from ...nn import Module
from ...nn.chain import chain
from ..remat.recompute import checkpoint
from .activations import OffloadedView
from .timeline import OFFLOAD, OFFLOAD_INPUT, RECOMPUTE


class BackwardMark(Function):
    """A mark after a part: calls `on_backward()` when backward reaches it."""

    metered = False

    def forward(ctx, x, on_backward):
        """Return x."""
        ctx.on_backward = on_backward
        return x

    def backward(ctx, grad):
        """Call `on_backward` and pass the gradient on."""
        ctx.on_backward()
        return [grad]


class MovingStorage:
    """A storage that moves: `here` on the device, packed by the outer hooks; `outside` on the host.
    """

    __slots__ = ("here", "outside", "like", "__weakref__")

    def __init__(self, flat: Array, hooks: Any):
        self.here: SavedArray | None = SavedArray(flat, hooks)
        self.outside: Array | None = None
        self.like = np.empty(0, flat.dtype, like=flat)


class Transfer:
    """The arrays that one part saves, which move together.

    A transfer is `open`, and takes arrays, while its part runs, if the part is to be offloaded.  A
    storage that is freed early drops out.
    """

    def __init__(self, executor: "DecisionExecutor", decision: str):
        self.out, self.back, self.empty = executor.out, executor.back, executor.empty
        self.stays, self.hooks = executor.stays, current_saved_tensors_hooks()
        self.open = decision in (OFFLOAD, OFFLOAD_INPUT)
        self.storages: weakref.WeakValueDictionary[int, MovingStorage] = \
            weakref.WeakValueDictionary()
        self.copies_out: list[tuple[MovingStorage, Any]] = []
        self.copies_in: list[tuple[MovingStorage, Any]] | None = None

    def pack(self, array: Array) -> OffloadedView | SavedArray:
        """Pack hook: add the array to the transfer, unless it stays on the device.

        Arrays in `stays` stay, and arrays that backward recomputes, and storages with gaps.
        """
        owner = storage(array)
        if self.open and (is_host(array) or is_gpu(array)) and id(owner) not in self.stays:
            flat = flat_view(owner)
            place = view_spec(array, flat)
            if place is not None:
                moved = self.storages.get(id(owner))    # it keeps the owner alive, and its id
                if moved is None:
                    moved = self.storages[id(owner)] = MovingStorage(flat, self.hooks)
                return OffloadedView(moved, place)
        return SavedArray(array, self.hooks)

    def unpack(self, item: OffloadedView | SavedArray) -> Array:
        """Unpack hook: the array; its copy in has ended."""
        if isinstance(item, SavedArray):
            return item()
        return view_from_spec(item.moved.here(), item.place)

    def begin_copy_out(self) -> None:
        """Start the copies out; arrays saved later are not part of the transfer."""
        self.open = False
        for moved in list(self.storages.values()):
            flat = moved.here()
            moved.outside = record_allocation("offloaded", self.empty(flat.shape, flat.dtype))
            self.copies_out.append((moved, self.out.copy(flat, moved.outside)))
        self.out.flush()

    def wait_out(self) -> None:
        """Wait for the copies out, and free the device's memory."""
        for moved, copy in self.copies_out:
            self.out.wait(copy)
            moved.here = None
        self.copies_out = []

    def begin_copy_in(self) -> None:
        """Start the copies in, unless they have started."""
        if self.copies_in is None:
            self.wait_out()
            self.copies_in = []
            for moved in list(self.storages.values()):
                flat = np.empty(moved.outside.shape, moved.like.dtype, like=moved.like)
                moved.here = SavedArray(flat, self.hooks)
                self.copies_in.append((moved, self.back.copy(moved.outside, flat)))

    def wait_in(self) -> None:
        """Wait for the copies in, and free the host's memory."""
        copies_in, self.copies_in = self.copies_in, []
        for moved, copy in copies_in:
            self.back.wait(copy)
            moved.outside = None


class DecisionExecutor:
    """Runs the parts of a model by `decisions`, one for each part and one for the loss.

    `empty(shape, dtype)` makes arrays on the host.  `out` and `back` are the streams for the two
    directions, such as `copy_streams(comm)`.  The tensors in `stays`, usually the parameters, stay
    on the device: copying them frees nothing.  Do not use it with FSDP or ZeRO-3, whose gathered
    weights it would offload like activations, nor with deferred weight gradients.
    """

    def __init__(self, decisions: Sequence[str], empty: Callable[[Any, Any], Array],
                 stays: Iterable[Tensor] = (), out: CopyStream | None = None,
                 back: CopyStream | None = None, ahead: int = 1):
        self.decisions, self.empty, self.ahead = tuple(decisions), empty, ahead
        self.out, self.back = out or CopyStream(), back or CopyStream()
        self.stays = {id(owner): owner for owner in (storage(p.data) for p in stays)}
        self.transfers: list[Transfer] = []             # of the parts that have run

    def run_first(self, parts: Sequence[Callable], x: Any) -> Tensor:
        """Apply all parts but the loss.  Raises ValueError for a different number of decisions."""
        if len(parts) + 1 != len(self.decisions):
            raise ValueError(f"{len(self.decisions)} decisions for {len(parts) + 1} parts: give "
                             "one for each part, the loss included")
        self.transfers = []
        for part, decision in zip(parts, self.decisions):
            x = self._run(part, decision, x)
        return x

    def run_last(self, part: Callable, x: Tensor) -> Tensor:
        """Apply the loss."""
        return self._run(part, self.decisions[-1], x)

    def _run(self, part: Callable, decision: str, x: Any) -> Tensor:
        if not is_recording():
            return part(x)
        transfers, i = self.transfers, len(self.transfers)
        transfers.append(transfer := Transfer(self, decision))
        with saved_tensors_hooks(transfer.pack, transfer.unpack, nested=False):
            x = checkpoint(part, x) if decision in (RECOMPUTE, OFFLOAD_INPUT) else part(x)
        if i >= self.ahead:
            transfers[i - self.ahead].wait_out()
        transfer.begin_copy_out()
        return BackwardMark.apply(x, on_backward=partial(self._arrive, transfers, i))

    def _arrive(self, transfers: list[Transfer], i: int) -> None:
        """Before the backward of part i: start the copies in of parts i … i - ahead; wait for i's.
        """
        for j in range(i, max(-1, i - self.ahead - 1), -1):
            transfers[j].begin_copy_in()
        transfers[i].wait_in()


def parts_and_loss(model: Module, targets: Array,
                   loss_divisor: float | None = None) -> list[Callable[[Any], Tensor]]:
    """The parts of a model and, as the last one, its loss, which may be recomputed."""
    targets = unchanging(targets)
    return [*chain(model), lambda logits: model.criterion(logits, targets, loss_divisor)]


def apply_decisions(model: Module, executor: DecisionExecutor) -> Module:
    """Change `model` so that it runs its parts and the loss by `executor`; return it."""
    def loss(forward: Callable, logits: Tensor, targets: Array, *options: Any) -> Tensor:
        targets = unchanging(targets)           # the loss may be computed again
        return executor.run_last(lambda x: forward(x, targets, *options), logits)
    model.run_parts.around(lambda forward, parts, x: executor.run_first(chain(model), x))
    model.cross_entropy.around(loss)
    return model
