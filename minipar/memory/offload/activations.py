"""Offloading: what is saved for backward waits on the host, and comes back before it is asked for.

    forward    compute  h.0  h.1  h.2  h.3 │ backward  h.3  h.2  h.1  h.0
               out        ─0─  ─1─  ─2─    │
               in                          │             ─2─  ─1─  ─0─

An array leaves when an operation saves it, and is freed as soon as it has left and nobody uses it
any more.  Backward asks for arrays in about the reverse order of saving: with each one that it asks
for, the `ahead` ones saved before it begin to come back.  Of the device's memory that takes, in
each direction, the arrays that are under way: with ahead=1 one is used while another is copied,
double buffering; more of them even out sizes that differ.

Nothing is rounded and no view changes its strides: the gradients are the same bit for bit.  If the
link is fast enough, copies hide behind the computation; else a step takes as long as its copies.
vDNN, Rhu et al. 2016; ZeRO-Offload, Ren et al. 2021.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from ...autograd import Tensor, saved_tensors_hooks
from ...backend import Array, is_gpu, is_host, record_allocation
from ...backend.copy_stream import CopyStream
from ...backend.views import flat_view, storage, view_from_spec, view_spec
from ..remat.recompute import is_recomputing

MIN_BYTES = 1 << 16       # smaller arrays stay: their bytes are few, each copy costs something
LOOK_BACK = 64              # how many of the arrays saved before are looked through for the next

_paused: ContextVar[bool] = ContextVar("paused", default=False)


class Moved:
    """A storage that was moved out: `outside` is its place there, `here` what came back of it."""

    __slots__ = ("number", "owner", "like", "outside", "here", "coming", "__weakref__")

    def __init__(self, number: int, owner: Array, flat: Array, outside: Array):
        self.number, self.owner, self.outside = number, weakref.ref(owner), outside
        self.like = np.empty_like(flat, shape=0)        # where it was, and of which dtype
        self.here: Array | None = None
        self.coming: Any = None                         # the copy, until it was waited for


class View(NamedTuple):
    """In place of a saved array: which part of which storage it was."""

    moved: Moved
    place: tuple


class OffloadActivations:
    """Moves saved arrays to `empty(shape, dtype)`, arrays of the host, and back.

    `out` and `back` are the lanes that it takes them on, such as those of `comm.copy_lane`.
    `stays`: tensors that live on in any case, the parameters.  At most `ahead` copies out are under
    way, and as many in beside the one that is waited for.  What is still there when it is asked for
    does not come back.  `bytes_out`, `bytes_in`, `num_out` and `num_in` count copies; `num_late`
    those that began only when they were asked for.
    """

    def __init__(self, empty: Callable[[Any, Any], Array], stays: Iterable[Tensor] = (),
                 out: CopyStream | None = None, back: CopyStream | None = None, ahead: int = 4,
                 min_bytes: int = MIN_BYTES):
        if ahead < 0:
            raise ValueError(f"ahead is a number of arrays >= 0, not {ahead}")
        self.empty, self.ahead, self.min_bytes = empty, ahead, min_bytes
        self.out, self.back = out or CopyStream(), back or CopyStream()
        self.stays = {id(owner): owner for owner in (storage(p.data) for p in stays)}
        self.bytes_out = self.bytes_in = self.num_out = self.num_in = self.num_late = 0
        self._by_storage: dict[int, weakref.ref[Moved]] = {}
        self._by_number: weakref.WeakValueDictionary[int, Moved] = weakref.WeakValueDictionary()
        self._leaving: deque[Any] = deque()
        self._coming: weakref.WeakSet[Moved] = weakref.WeakSet()

    def recording(self) -> AbstractContextManager:
        """Context of forward and backward in which what is saved is moved.

        Outside of a strategy's own, which has to recognize its weights first; inside a ledger's.
        """
        return saved_tensors_hooks(self._pack, self._unpack)

    def should_offload(self, array: Array) -> bool:
        """Whether this saved array is moved, with the whole storage that it is a view of."""
        if not (is_host(array) or is_gpu(array)) or _paused.get() or is_recomputing():
            return False                # other hooks' notes; what backward wants at once
        owner = storage(array)
        return (id(owner) not in self.stays and owner.ndim > 0
                and owner.nbytes >= self.min_bytes)

    def _pack(self, array: Any) -> Any:
        if not hasattr(array, "nbytes") or not self.should_offload(array):
            return array
        owner = storage(array)
        flat, known = flat_view(owner), self._by_storage.get(id(owner))
        place, moved = view_spec(array, flat), known() if known else None
        if place is None:                           # memory with gaps, from elsewhere
            return array
        return View(moved or self._move_out(owner, flat), place)

    def _move_out(self, owner: Array, flat: Array) -> Moved:
        record_allocation("activations", owner)             # until it is freed, it is still here
        outside = record_allocation("offloaded", self.empty(flat.shape, flat.dtype))
        moved = Moved(self.num_out, owner, flat, outside)
        self._leaving.append(self.out.copy(flat, outside))
        if len(self._leaving) > self.ahead:
            self.out.wait(self._leaving.popleft())
        if id(owner) not in self._by_storage:       # ids are used again: forget it with the array
            weakref.finalize(owner, self._by_storage.pop, id(owner)).atexit = False
        self._by_storage[id(owner)] = weakref.ref(moved)
        self._by_number[moved.number] = moved
        self.num_out += 1
        self.bytes_out += flat.nbytes
        return moved

    def _unpack(self, item: Any) -> Array:
        if not isinstance(item, View):
            return item
        self.out.release_finished()
        moved = item.moved
        if moved.here is None and self._begin(moved):
            self.num_late += 1
        self._coming.discard(moved)
        for other in self.next_ones(moved.number):
            if len(self._coming) >= self.ahead:
                break
            if self._begin(other):
                self._coming.add(other)
        if moved.coming is not None:
            self.back.wait(moved.coming[0])
            moved.coming = None
        moved.outside = None
        return view_from_spec(moved.here, item.place)

    def next_ones(self, number: int) -> list[Moved]:
        """What backward is expected to ask for after array `number`, the soonest first: those that
        were saved before it and are still out, in reverse order."""
        found = (self._by_number.get(n)
                 for n in range(number - 1, max(-1, number - 1 - LOOK_BACK), -1))
        return [moved for moved in found if moved is not None and moved.here is None]

    def _begin(self, moved: Moved) -> bool:
        """Begin to bring it back; False if that takes no copy, as it is still here."""
        owner = moved.owner()
        if owner is not None:
            moved.here = flat_view(owner)
            return False
        moved.here = np.empty_like(moved.like, shape=moved.outside.shape)
        record_allocation("activations", moved.here)
        moved.coming = (self.back.copy(moved.outside, moved.here),)
        self.num_in += 1
        self.bytes_in += moved.outside.nbytes
        return True


@contextmanager
def no_offload():
    """Context in which nothing of what is saved is moved."""
    token = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(token)
