"""The order of reductions: all ranks start them in one order, whatever becomes ready first.

    bucket      0: h.2    1: h.1    2: h.0
    ready       0 ✓       1 …       2 ✓         bucket 1 still lacks a gradient,
    started     0                               so bucket 2 waits too

A rank that started bucket 2 before bucket 1 would pair its message with the others' bucket 1.

A parameter calls its ready hooks when backward has completed its gradient.  Before a backward, a
walk over the graph finds the parameters that this rank uses in it: a bucket waits only for
gradients that will come.  Li et al. 2020 (PyTorch Distributed), section 3.2.3.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from ...autograd import GradientSlot, Tensor, reachable_slots


class ReductionQueue:
    """Calls start(0), start(1), …, each when all gradients of its group are ready.

    Only gradients between `before_backward` and `after_backward` count.
    """

    def __init__(self, groups: Sequence[Sequence[Tensor]], start: Callable[[int], None]):
        self.groups = [[p.slot for p in group] for group in groups]
        self.start = start
        self.awaited: list[set[GradientSlot]] = []      # of each group; [] outside a backward
        self.num_started = 0
        for i, slots in enumerate(self.groups):
            for slot in slots:
                slot.ready_hooks.append(partial(self._on_ready, i))

    def before_backward(self, loss: Tensor) -> None:
        """Find the gradients that a backward from `loss` will complete."""
        coming = reachable_slots(loss)
        self.awaited = [coming.intersection(slots) for slots in self.groups]
        self.num_started = 0

    def _on_ready(self, i: int, slot: GradientSlot) -> None:
        if self.awaited:
            self.awaited[i].discard(slot)
            self._start_ready()

    def _start_ready(self) -> None:
        while self.num_started < len(self.awaited) and not self.awaited[self.num_started]:
            self.num_started += 1
            self.start(self.num_started - 1)

    def after_backward(self) -> None:
        """Start the reductions that are left: no gradient came for them, so no hook was called."""
        self.awaited = [set()] * len(self.groups)
        self._start_ready()
        self.awaited = []

    def during(self, loss: Tensor) -> AbstractContextManager:
        """Context of a backward from `loss`, whose graph must be there now.

        Other backwards may come before it is entered: in a pipeline with FSDP, those of other
        microbatches.  Entered after its backward, it starts all reductions at once.
        """
        self.before_backward(loss)
        awaited, self.awaited = self.awaited, []
        return self._during(awaited)

    @contextmanager
    def _during(self, awaited: list[set[GradientSlot]]) -> Iterator[None]:
        self.awaited, self.num_started = awaited, 0
        yield
        self.after_backward()
