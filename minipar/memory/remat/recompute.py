"""Rematerialization: what backward needs of a segment is dropped, and computed again if asked for.

    forward    x ─▶ [ ln ─▶ linear ─▶ gelu ─▶ linear ] ─▶ y       keeps x alone
    backward   first saved array asked for: run the segment again from x, this time keeping
               what the operations save; then go on as if it had been there all along

The graph is that of the ordinary forward: only the arrays behind it are missing.  So a
recomputation is a forward inside `unpack`, backward itself is not entered a second time, and
whatever works with the graph (deferred weight gradients, gradient hooks, sharded weights) does not
notice.  The second forward runs in the context of the first: the same dropout (masks follow from
the step and the layer's name), the same meter, the same hooks for what it saves.

Segments nest: a segment inside another is dropped with it, and computed again from its own input
once the outer one has brought that back.  Griewank & Walther 2000; Chen et al. 2016.
"""

import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from typing import Any

import numpy as np

from ...autograd import Tensor, saved_tensors_hooks
from ...autograd.function import is_recording
from ...autograd.saved import SavedArray, StopForward, current_saved_tensors_hooks
from ...backend import Array

# The segment that is being computed for the first time; every simulated rank has its own.
_around: ContextVar["Segment | None"] = ContextVar("segment", default=None)
_again: ContextVar[bool] = ContextVar("again", default=False)


def is_recomputing() -> bool:
    """Whether this is a second forward, whose results backward wants at once."""
    return _again.get()


def checkpoint(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """`function(*inputs)`, which keeps `inputs` (Tensors or arrays) and nothing of what it saves.

    `function` must compute the same when it is called again: parameters that it uses may not have
    changed by then.  Raises RuntimeError in backward if it saves something else.
    """
    if not is_recording():
        return function(*inputs)
    segment = Segment(function, inputs)
    token = _around.set(segment)
    try:
        with saved_tensors_hooks(segment.drop, segment.bring_back, nested=False):
            return function(*inputs)
    finally:
        _around.reset(token)


class Dropped:
    """In place of a saved array; `again` is the array once it was computed again."""

    __slots__ = ("form", "again", "__weakref__")

    def __init__(self, array: Array):
        self.form: tuple[tuple[int, ...], np.dtype] = array.shape, array.dtype
        self.again: SavedArray | None = None


class Segment:
    """One call of a checkpointed function: how to compute again what it saved.

    `hooks` are those outside of all segments: what is computed again is saved through them.
    """

    def __init__(self, function: Callable[..., Tensor], inputs: Sequence[Any]):
        around, hooks = _around.get(), current_saved_tensors_hooks()
        self.function, self.context = function, copy_context()
        self.hooks = around.hooks if around else hooks
        self.inputs = [(SavedArray(x.data, hooks), x.requires_grad) if isinstance(x, Tensor) else x
                       for x in inputs]
        if any(isinstance(x, tuple) and x[0].item is StopForward for x in self.inputs):
            raise StopForward
        self.dropped: list[weakref.ref[Dropped]] = []   # the graph holds them while it needs them

    def drop(self, array: Array) -> Dropped:
        """A hook: keep nothing."""
        self.dropped.append(weakref.ref(item := Dropped(array)))
        return item

    def bring_back(self, item: Dropped) -> Array:
        """A hook: the array, computed again with all the others if it is the first."""
        if item.again is None:
            self.context.run(self._recompute)
        return item.again()

    def _recompute(self) -> None:
        wanted = [ref() for ref in self.dropped]        # None: backward has no use for it any more
        while wanted[-1] is None:
            wanted.pop()
        waiting = iter(wanted)
        inputs = [Tensor(x[0](), requires_grad=x[1]) if isinstance(x, tuple) else x
                  for x in self.inputs]

        def keep(array: Array) -> type[StopForward] | None:
            item = next(waiting)
            if item is not None:
                if item.form != (array.shape, array.dtype):
                    raise _differs(f"{array.shape} {array.dtype}", item)
                item.again = SavedArray(array, self.hooks)
            return StopForward if item is wanted[-1] else None

        _again.set(True)                # in this segment's own context, which ends here
        try:
            with saved_tensors_hooks(keep, lambda nothing: nothing, nested=False):
                self.function(*inputs)
        except StopForward:
            self.function = self.inputs = self.context = None   # never asked again
            return
        raise _differs("nothing", next(waiting))


def _differs(came: str, expected: Dropped | None) -> RuntimeError:
    form = "another array" if expected is None else "{} {}".format(*expected.form)
    return RuntimeError(f"computed again, a checkpointed function saves {came} where it saved "
                        f"{form} before: it must do the same in both calls (random numbers by "
                        "name, no state that the first call changes)")
