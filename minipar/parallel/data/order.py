"""Reductions start in one order on all ranks, whatever becomes ready first.

    groups      0: h.2    1: h.1    2: h.0          all ranks agree on what is next: 1 starts late
    ready       0 ✓       1 …       2 ✓             if one of its gradients comes late, and 2 after
    started     0                                   it

Which parameters a backward reaches is known before it begins (a walk over the graph): those that
this rank does not use in this step are not waited for.  Li et al. 2020 (PyTorch Distributed),
section 3.2.3.
"""

from collections.abc import Callable, Sequence

from ...autograd import GradientSlot, Tensor, reachable_slots
from ...nn import Parameter


class OrderedLauncher:
    """Calls launch(0), launch(1), …, each once all parameters of its group are ready.

    Between `before_backward` and `after_backward`; other backwards do not count.
    """

    def __init__(self, groups: Sequence[Sequence[Parameter]], launch: Callable[[int], None]):
        self.groups, self.launch = [[p.slot for p in group] for group in groups], launch
        self.missing: list[set[GradientSlot]] = []
        self.num_launched = 0
        for i, slots in enumerate(self.groups):
            for slot in slots:
                slot.ready_hooks.append(lambda slot, i=i: self._ready(i, slot))

    def before_backward(self, loss: Tensor) -> None:
        """A backward from `loss` is about to begin."""
        coming = reachable_slots(loss)
        self.missing = [coming.intersection(slots) for slots in self.groups]
        self.num_launched = 0

    def postpone(self) -> Callable[[], None]:
        """Let other backwards come first; this one begins when what is returned is called."""
        missing, self.missing = self.missing, []

        def begin() -> None:
            self.missing, self.num_launched = missing, 0
        return begin

    def _ready(self, i: int, slot: GradientSlot) -> None:
        if self.missing:
            self.missing[i].discard(slot)
            self._launch_ready()

    def _launch_ready(self) -> None:
        while self.num_launched < len(self.missing) and not self.missing[self.num_launched]:
            self.num_launched += 1
            self.launch(self.num_launched - 1)

    def after_backward(self) -> None:
        """The backward is over: launch what no gradient came for."""
        self._launch_ready()
        self.missing = []
