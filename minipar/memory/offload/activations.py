"""Offload saved activations to the host, and fetch them before backward needs them.

    forward    compute  h.0  h.1  h.2  h.3 │ backward  h.3  h.2  h.1  h.0
               out        ─0─  ─1─  ─2─  ──│3─
               in                          │             ─2─  ─1─  ─0─

A copy out starts when an operation saves an array; the array is freed once it is copied and unused.
Backward unpacks arrays in about the reverse order of saving.  So each unpack also starts copies in,
until `ahead` of the arrays saved before are on their way.  Array 3 is still alive when backward
needs it, so it is not copied back.  The device needs memory for the arrays in flight in each
direction.  With ahead=1 one array is used while the next is copied (double buffering); a larger
`ahead` evens out different sizes.

Nothing is rounded and every view keeps its strides, so gradients are bitwise the same.  If the link
is fast enough, copies hide behind computation; otherwise a step takes about as long as its copies.
vDNN, Rhu et al. 2016; ZeRO-Offload, Ren et al. 2021.  PyTorch: torch.autograd.graph.save_on_cpu.
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
from ...backend.shape_rules import is_shape_only
from ...backend.views import ViewSpec, flat_view, storage, view_from_spec, view_spec
from ..remat.recompute import is_recomputing

MIN_BYTES = 1 << 16       # smaller arrays stay: a copy costs more than they free
LOOK_BACK = 64            # earlier arrays among which prefetching looks for the next

_paused: ContextVar[bool] = ContextVar("paused", default=False)


class OffloadedStorage:
    """An offloaded storage: `outside` is its copy on the host, `here` the one fetched back."""

    __slots__ = ("number", "owner", "like", "outside", "here", "copy_in", "__weakref__")

    def __init__(self, number: int, owner: Array, flat: Array, outside: Array):
        self.number, self.owner, self.outside = number, weakref.ref(owner), outside
        self.like = np.empty(0, flat.dtype, like=flat)        # says which device and dtype
        self.here: Array | None = None
        self.copy_in: Any = None                         # in flight, until it is waited for


class OffloadedView(NamedTuple):
    """Stands in the graph for a saved array: the array's storage, and its place in the storage."""

    moved: Any              # the OffloadedStorage
    place: ViewSpec


class OffloadActivations:
    """Copies saved arrays to the host, and back in backward.

    `empty(shape, dtype)` makes arrays on the host.  `out` and `back` are the streams for the two
    directions, such as `copy_streams(comm)`.  The tensors in `stays`, usually the parameters, stay
    on the device: copying them frees nothing.  At most `ahead` copies out are in flight, and as
    many copies in beside the one that backward waits for.  An array that is still alive when
    backward needs it is not copied back.  `num_out`, `num_in`, `bytes_out` and `bytes_in` count
    copies and their bytes.  `num_late` counts copies in that started only when backward needed the
    array.
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
        self._by_storage: dict[int, weakref.ref[OffloadedStorage]] = {}
        self._by_number: weakref.WeakValueDictionary[int, OffloadedStorage] = \
            weakref.WeakValueDictionary()
        self._copies_out: deque[Any] = deque()
        self._prefetched: weakref.WeakSet[OffloadedStorage] = weakref.WeakSet()

    def recording(self) -> AbstractContextManager:
        """Context of forward and backward in which saved arrays are offloaded.

        Enter it after a ledger's context, and before a strategy's, whose hooks must see gathered
        weights first.
        """
        return saved_tensors_hooks(self._pack, self._unpack)

    def should_offload(self, array: Array) -> bool:
        """True if this array is to be offloaded, with the whole storage that it is a view of."""
        is_array = is_host(array) or is_gpu(array) or is_shape_only(array)
        if not is_array or _paused.get() or is_recomputing():
            return False                # another hook's note, or an array that backward needs now
        owner = storage(array)
        return (id(owner) not in self.stays and owner.ndim > 0
                and owner.nbytes >= self.min_bytes)

    def _pack(self, array: Any) -> Any:
        if not hasattr(array, "nbytes") or not self.should_offload(array):
            return array
        owner = storage(array)
        flat, known = flat_view(owner), self._by_storage.get(id(owner))
        place, moved = view_spec(array, flat), known() if known else None
        if place is None:                           # a foreign storage with gaps
            return array
        return OffloadedView(moved or self._move_out(owner, flat), place)

    def _move_out(self, owner: Array, flat: Array) -> OffloadedStorage:
        record_allocation("activations", owner)             # on the device until it is freed
        outside = record_allocation("offloaded", self.empty(flat.shape, flat.dtype))
        moved = OffloadedStorage(self.num_out, owner, flat, outside)
        self._copies_out.append(self.out.copy(flat, outside))
        if len(self._copies_out) > self.ahead:
            self.out.wait(self._copies_out.popleft())
        if id(owner) not in self._by_storage:       # Python reuses ids: forget them
            weakref.finalize(owner, self._by_storage.pop, id(owner)).atexit = False
        self._by_storage[id(owner)] = weakref.ref(moved)
        self._by_number[moved.number] = moved
        self.num_out += 1
        self.bytes_out += flat.nbytes
        return moved

    def _unpack(self, item: Any) -> Array:
        if not isinstance(item, OffloadedView):
            return item
        self.out.release_finished()
        moved = item.moved
        if moved.here is None and self._fetch(moved):
            self.num_late += 1
        self._prefetched.discard(moved)
        for other in self.prefetch_candidates(moved.number):
            if len(self._prefetched) >= self.ahead:
                break
            if self._fetch(other):
                self._prefetched.add(other)
        if moved.copy_in is not None:
            self.back.wait(moved.copy_in[0])
            moved.copy_in = None
        moved.outside = None
        return view_from_spec(moved.here, item.place)

    def prefetch_candidates(self, number: int) -> list[OffloadedStorage]:
        """The arrays that backward probably needs after array `number`, the soonest first.

        Of the LOOK_BACK arrays saved before that one, they are those that are not back yet, in
        reverse order.
        """
        found = (self._by_number.get(n)
                 for n in range(number - 1, max(-1, number - 1 - LOOK_BACK), -1))
        return [moved for moved in found if moved is not None and moved.here is None]

    def _fetch(self, moved: OffloadedStorage) -> bool:
        """Start to copy a storage back; return False if its original is alive and no copy needed.
        """
        owner = moved.owner()
        if owner is not None:
            moved.here = flat_view(owner)
            return False
        moved.here = np.empty(moved.outside.shape, moved.like.dtype, like=moved.like)
        record_allocation("activations", moved.here)
        moved.copy_in = (self.back.copy(moved.outside, moved.here),)
        self.num_in += 1
        self.bytes_in += moved.outside.nbytes
        return True


@contextmanager
def no_offload():
    """Context in which saved arrays are not offloaded."""
    token = _paused.set(True)
    try:
        yield
    finally:
        _paused.reset(token)
