"""Temporaries: the arrays that operations hand to each other and that no operation saves.

    forward     x ─▶ f ─▶ y          y is alive until the next operation has used it; while it is
                                     saved for backward, it counts as an activation
    backward    dx ◀─ f ◀─ dy        gradients on their way; weights that were rounded, decoded,
                                     moved or recomputed for one use

A temporary lives for one or two operations, but a few large ones are alive at the peak of a step.
For a GPT of six layers in float32 they are 2 % of the peak, or 11 to 33 % where fewer activations
are kept (docs/pages/memory.md).  Operations and pullbacks pass the arrays that they return to
`record_allocation`, which costs nothing unless a ledger listens.

Arrays that an operation both allocates and frees are not counted, since no code reports them.
Python's allocator shows that they add 2 to 12 % to the same peaks
(tests/memory/test_temporaries.py).
"""

import weakref

from ..backend import Array
from ..backend.views import storage
from .ledger import TEMPORARIES, Ledger


class StepLedger(Ledger):
    """A ledger that also counts temporaries: nearly all memory of a training step."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._temporaries: dict[int, int] = {}          # bytes by the storage's id, saved or not

    def add(self, kind: str, array: Array) -> None:
        """Count the storage of `array`; a temporary may be counted as a different kind later."""
        owner = storage(array)
        key = id(owner)
        if kind != TEMPORARIES:
            self._forget(key)
            super().add(kind, array)
        elif owner.ndim and key not in self._known and key not in self._temporaries:
            if key not in self._uses:
                self._ask(kind, owner.nbytes)
                self._change(kind, owner.nbytes)
            self._temporaries[key] = owner.nbytes
            weakref.finalize(owner, self._forget, key).atexit = False

    def _forget(self, key: int) -> None:
        num_bytes = self._temporaries.pop(key, 0)
        if num_bytes and key not in self._uses:
            self._change(TEMPORARIES, -num_bytes)

    def _start_use(self, key: int, num_bytes: int) -> None:
        if key in self._temporaries:                    # an activation from now on
            self._change(TEMPORARIES, -num_bytes)
        super()._start_use(key, num_bytes)

    def _end_use(self, key: int, num_bytes: int) -> None:
        super()._end_use(key, num_bytes)
        if key in self._temporaries:
            self._change(TEMPORARIES, num_bytes)
