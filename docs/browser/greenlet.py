"""greenlet for a web page: as much of its interface as minipar uses, where C cannot switch stacks.

    switch    ──▶ stacks.start(me, body)     park this stack, and run body() on a new one
              ──▶ stacks.switch(me, other)   park this stack, and wake another
    the end   ──▶ stacks.wake(parent)        this stack ends when body() returns

stacks.py does it in a browser; the tests do it with threads.  What differs from greenlet: a
suspended greenlet that is no longer used is not unwound, but stays parked until the page ends; and
`gr_frame` is a copy.  While a stack of WebAssembly is parked, others use its memory, so its frames
cannot be read from outside: it is woken, copies them, and is parked again.
"""

import sys
from collections.abc import Callable
from contextvars import Context
from types import CodeType, FrameType
from typing import Any, NamedTuple

import stacks


class GreenletExit(BaseException):
    """Ends the greenlet into which it is thrown, and nothing else."""


class Frame(NamedTuple):
    """What is to be known of a suspended frame."""

    f_code: CodeType
    f_lineno: int
    f_back: "Frame | None"


class greenlet:
    """A function with a stack of its own; `parent` continues when it returns or raises."""

    count = 0

    def __init__(self, run: Callable | None = None, parent: "greenlet | None" = None):
        greenlet.count += 1
        self.number, self.parent = greenlet.count, parent or getcurrent()
        if run is not None:
            self.run: Any = run
        self.gr_context: Context | None = None
        self.started = self.dead = False
        self.value: Any = None              # what its switch() is to return …
        self.error: BaseException | None = None         # … or to raise
        self.asker: greenlet | None = None              # who wants to know where it stands

    def __bool__(self) -> bool:
        return self.started and not self.dead

    def switch(self, *args: Any, **options: Any) -> Any:
        """Continue there with the argument, or with a tuple of several, until a switch back."""
        return _switch(self, args[0] if len(args) == 1 else args, None, args, options)

    def throw(self, error: Any = GreenletExit) -> Any:
        """Raise `error` there, where it is suspended."""
        error = error() if isinstance(error, type) else error
        if not self.started:
            self.dead = True                            # it ends before it has begun
        if self.dead and isinstance(error, GreenletExit):
            return _switch(self.parent, error, None)    # as if it had been returned
        return _switch(self, None, error)

    @property
    def gr_frame(self) -> Frame | None:
        """Where it is suspended; None if it is not."""
        if self is _current or not self:
            return None
        self.asker = _current
        stacks.switch(_current.number, self.number)
        frame, self.asker = self.asker, None
        return frame                                    # type: ignore[return-value]

    def _body(self, args: tuple, options: dict) -> None:
        """What the new stack runs: the function, then the parent with its result."""
        global _current
        _current = self
        run, context = self.run, self.gr_context
        del self.run                        # what it refers to is freed as soon as it ends
        value, error = None, None
        try:
            value = context.run(run, *args, **options) if context is not None \
                else run(*args, **options)
        except GreenletExit as stop:
            value = stop
        except BaseException as stop:
            error = stop
        self.dead, self.gr_context = True, None
        run = context = args = options = None         # type: ignore[assignment]
        _current = up = _alive(self.parent)
        up.value, up.error = value, error
        value = error = None
        stacks.wake(up.number)


def getcurrent() -> greenlet:
    """The greenlet that runs now."""
    return _current


def _alive(target: greenlet) -> greenlet:
    """`target`, or its first ancestor that has not ended."""
    while target.dead:
        target = target.parent
    return target


def _copy(frame: FrameType | None) -> Any:
    """A frame of this stack, and those that called it, without the stack's own beginning."""
    if frame is None or frame.f_code is greenlet._body.__code__:
        return None
    return Frame(frame.f_code, frame.f_lineno, _copy(frame.f_back))


def _switch(target: greenlet, value: Any, error: BaseException | None, args: tuple = (),
            options: Any = None) -> Any:
    """Continue in `target`; return what the switch back brings, or raise it."""
    global _current
    me, target = _current, _alive(target)
    if target is me:
        if error is not None:
            raise error
        return value
    if target.started:
        target.value, target.error = value, error
        value = error = None
        _current = target
        stacks.switch(me.number, target.number)
    else:
        target.started = True
        stacks.start(me.number, lambda: target._body(args, options or {}))
    while me.asker is not None:
        asker, me.asker = me.asker, _copy(sys._getframe(2))     # that of the caller of switch
        stacks.switch(me.number, asker.number)
    _current = me
    value, error, me.value, me.error = me.value, me.error, None, None
    if error is not None:
        try:
            raise error
        finally:
            error = None                                # no cycle of the error and this frame
    return value


_main = _current = greenlet.__new__(greenlet)
_main.number, _main.started, _main.dead = 0, True, False
_main.parent = _main.gr_context = None                      # type: ignore[assignment]
_main.value = _main.error = _main.asker = None
greenlet.getcurrent = staticmethod(getcurrent)              # type: ignore[attr-defined]
