"""Temporaries: the arrays that operations hand to each other, and that nobody keeps.

    forward     x ─▶ f ─▶ y          y lives until the next operation has used it; what is saved
                                     of it for backward is an activation, as long as it is
    backward    dx ◀─ f ◀─ dy        gradients on their way, weights rounded again, what was
                                     decoded, moved or computed again for one use

They last for an operation or two, but a few large ones are there at the peak of a step: 2 % of it
in float32 for a GPT of six layers, 11 to 33 % where less is kept (docs/pages/memory.md).
Operations and pullbacks report what they return to `record_allocation`, which costs nothing unless
a ledger listens.

Not seen are arrays that an operation makes and drops inside of it, for which its code would have to
say so: 2 to 12 % of the same peaks, by Python's allocator (tests/memory/test_temporaries.py).
"""

import weakref

from ..backend import Array
from ..backend.views import storage
from .ledger import TEMPORARIES, Ledger


class StepLedger(Ledger):
    """A ledger that counts temporaries as well: nearly all that a training step needs."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._temporaries: dict[int, int] = {}          # bytes by id of a storage, saved or not

    def add(self, kind: str, array: Array) -> None:
        """Count the memory of `array`, until it is freed or of another kind."""
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
