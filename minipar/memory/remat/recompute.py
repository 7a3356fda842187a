"""Activation checkpointing: drop what a segment saves for backward, and recompute it when needed.

    forward    x ─▶ [ ln ─▶ linear ─▶ gelu ─▶ linear ] ─▶ y       keeps only x
    backward   the first saved array is unpacked: run the segment again from x, this time keeping
               what its operations save; then continue as if the arrays had been there all along

The graph is that of the ordinary forward: only its saved arrays are missing.  A recomputation is a
forward inside `unpack`, and backward itself is not entered a second time.  So deferred weight
gradients, gradient hooks and sharded weights work unchanged.  The second forward runs in the
context of the first, with the same meter and the same hooks for what it saves.  Its dropout is the
same, because masks follow from seed, step, sample and the layer's name.

Segments nest.  An inner segment is dropped with the outer one.  When backward needs arrays of the
inner segment, the outer one is recomputed first, which brings back the input of the inner one.
Griewank & Walther 2000; Chen et al. 2016.  (A checkpoint is also the file of a run's state, as in
`minipar/checkpoint_file`.)
"""

import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from typing import Any

import numpy as np

from ...autograd import Tensor, saved_tensors_hooks
from ...autograd.function import is_recording
from ...autograd.saved import SavedArray, StopForward, current_saved_tensors_hooks, unchanging
from ...backend import Array

# The segment whose first forward is running; every simulated rank has its own.
_around: ContextVar["CheckpointedCall | None"] = ContextVar("segment", default=None)
_recomputing: ContextVar[bool] = ContextVar("recomputing", default=False)


def is_recomputing() -> bool:
    """True inside a recomputation, which is a forward that runs during backward."""
    return _recomputing.get()


def checkpoint(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Return `function(*inputs)`, keeping only `inputs` (Tensors or arrays) for backward.

    Backward calls `function` a second time, and the second call must compute the same: parameters
    in use must not change in between.  Backward raises RuntimeError if the second call saves
    arrays of other shapes or dtypes.
    """
    if not is_recording():
        return function(*inputs)
    segment = CheckpointedCall(function, inputs)
    token = _around.set(segment)
    try:
        with saved_tensors_hooks(segment.drop, segment.bring_back, nested=False):
            return function(*inputs)
    finally:
        _around.reset(token)


class Dropped:
    """Stands in the graph for a dropped array; `recomputed` is the array once it is there again."""

    __slots__ = ("form", "recomputed", "__weakref__")

    def __init__(self, array: Array):
        self.form: tuple[tuple[int, ...], np.dtype] = array.shape, array.dtype
        self.recomputed: SavedArray | None = None


class CheckpointedCall:
    """One call of a checkpointed function, and how to recompute the arrays that it saved.

    `hooks` are the saved-tensor hooks outside all segments; they also pack recomputed arrays.
    """

    def __init__(self, function: Callable[..., Tensor], inputs: Sequence[Any]):
        around, hooks = _around.get(), current_saved_tensors_hooks()
        self.function, self.context = function, copy_context()
        self.hooks = around.hooks if around else hooks
        self.inputs = [(SavedArray(x.data if x.requires_grad else unchanging(x.data), hooks),
                        x.requires_grad) if isinstance(x, Tensor) else unchanging(x)
                       for x in inputs]
        if any(isinstance(x, tuple) and x[0].item is StopForward for x in self.inputs):
            raise StopForward           # this input was the last array that was wanted
        self.dropped: list[weakref.ref[Dropped]] = []   # the graph owns them while it needs them

    def drop(self, array: Array) -> Dropped:
        """Pack hook: keep nothing of the array but its shape and dtype."""
        self.dropped.append(weakref.ref(item := Dropped(array)))
        return item

    def bring_back(self, item: Dropped) -> Array:
        """Unpack hook: the array; the first call recomputes all arrays still needed."""
        if item.recomputed is None:
            self.context.run(self._recompute)
        return item.recomputed()

    def _recompute(self) -> None:
        wanted = [ref() for ref in self.dropped]        # None: backward no longer needs it
        while wanted[-1] is None:
            wanted.pop()
        waiting = iter(wanted)
        inputs = [Tensor(x[0](), requires_grad=x[1]) if isinstance(x, tuple) else x
                  for x in self.inputs]

        def keep(array: Array) -> type[StopForward] | None:
            item = next(waiting)
            if item is not None:
                if item.form != (array.shape, array.dtype):
                    raise _other_arrays_error(f"{array.shape} {array.dtype}", item)
                item.recomputed = SavedArray(array, self.hooks)
            return StopForward if item is wanted[-1] else None

        _recomputing.set(True)                # in this segment's own context, which ends here
        try:
            with saved_tensors_hooks(keep, lambda nothing: nothing, nested=False):
                self.function(*inputs)
        except StopForward:
            self.function = self.inputs = self.context = None   # not needed any more
            return
        raise _other_arrays_error("nothing", next(waiting))


def _other_arrays_error(came: str, expected: Dropped | None) -> RuntimeError:
    form = "another array" if expected is None else "{} {}".format(*expected.form)
    return RuntimeError(f"recomputed, a checkpointed function saves {came} where it saved {form} "
                        "before: it must do the same in both calls (random numbers by name, no "
                        "state that the first call changes)")
