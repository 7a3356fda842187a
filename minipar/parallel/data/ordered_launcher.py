"""The order of reductions: all ranks start them in one order, whatever becomes ready first.

    bucket      0: h.2    1: h.1    2: h.0
    ready       0 ✓       1 …       2 ✓         bucket 1 still lacks a gradient,
    started     0                               so bucket 2 waits too

A rank that started bucket 2 before bucket 1 would pair its message with the others' bucket 1.

A parameter calls its ready hooks when backward has completed its gradient.  Before a backward, a
walk over the graph finds the parameters that this rank uses in it: a bucket waits only for
gradients that will come.  Li et al. 2020 (PyTorch Distributed), section 3.2.3.
"""

from collections.abc import Callable, Sequence
from functools import partial

from ...autograd import GradientSlot, Tensor, reachable_slots


class OrderedLauncher:
    """Calls launch(0), launch(1), …, each when all parameters of its group are ready.

    Only gradients between `before_backward` and `after_backward` count.
    """

    def __init__(self, groups: Sequence[Sequence[Tensor]], launch: Callable[[int], None]):
        self.groups, self.launch = [[p.slot for p in group] for group in groups], launch
        self.missing: list[set[GradientSlot]] = []      # of each group; [] outside a backward
        self.num_launched = 0
        for i, slots in enumerate(self.groups):
            for slot in slots:
                slot.ready_hooks.append(partial(self._on_ready, i))

    def before_backward(self, loss: Tensor) -> None:
        """Find the gradients that a backward from `loss` will complete."""
        coming = reachable_slots(loss)
        self.missing = [coming.intersection(slots) for slots in self.groups]
        self.num_launched = 0

    def postpone(self) -> Callable[[], None]:
        """Let other backwards come first; the function that is returned begins this one.

        For a pipeline with FSDP: after a stage's forward, backwards of other microbatches come.
        """
        missing, self.missing = self.missing, []

        def begin() -> None:
            self.missing, self.num_launched = missing, 0
        return begin

    def _on_ready(self, i: int, slot: GradientSlot) -> None:
        if self.missing:
            self.missing[i].discard(slot)
            self._launch_ready()

    def _launch_ready(self) -> None:
        while self.num_launched < len(self.missing) and not self.missing[self.num_launched]:
            self.num_launched += 1
            self.launch(self.num_launched - 1)

    def after_backward(self) -> None:
        """Launch the groups that are left: no gradient came for them, so no hook was called."""
        self._launch_ready()
        self.missing = []
