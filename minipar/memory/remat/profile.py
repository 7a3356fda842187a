"""Profile a chain of parts: run each part by itself, and count the bytes it keeps and the FLOPs.

    a block    gets 24.6 kB, saves 488 kB, computes 7.92 MFLOPs (7.9 up to its last saved array)

Shape-only arrays (`shape_array.py`) are enough, so a model that fits on no machine can be planned.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...autograd import Meter, Tensor, saved_tensors_hooks
from ...autograd.engine import backward_order
from ...autograd.saved import StopForward, unchanging
from ...autograd.tensor import Node
from ...backend import Array
from ...backend.views import storage
from ...nn.parameter import Parameter
from ..ledger import Ledger


class PartProfile(NamedTuple):
    """The bytes that one part keeps, and the FLOPs that it computes.

    The first number of a pair counts the part's input; the second leaves the input out, for a part
    whose input is alive anyway.
    """

    input_bytes: int                # its input; 0 for plain data and parameters
    saved_bytes: tuple[int, int]    # saved in forward
    peak_bytes: tuple[int, int]     # alive in its backward: more than saved if it recomputes
    num_saved: int                  # saved arrays, parameters included
    saves_output: int               # 1 if it saves its output
    forward_flops: int
    recompute_flops: int            # of a forward that stops after its last saved array
    nested_flops: int               # that segments inside it recompute in its backward
    backward_flops: int             # of the rest of its backward

    @property
    def saves_input(self) -> bool:
        """True if the part saves its input."""
        return self.saved_bytes[0] > self.saved_bytes[1]


class ChainProfile(NamedTuple):
    """The profiles of a chain of parts, and the bytes that the loss after them saves."""

    parts: tuple[PartProfile, ...]
    loss_bytes: int = 0


def profile_parts(parts: Sequence[Callable], x: Any, loss: Callable[[Tensor], Tensor] | None = None,
                  parameters: Sequence[Parameter] = ()) -> ChainProfile:
    """The profile of the parts, which run one by one, each on the output of the one before.

    `x` is the input of the first part as the model gets it (array or Tensor, shape-only or not).
    `parameters` are those in use, which do not count as activations.  A part that saves arrays runs
    twice, the second time up to its last saved array, and so does the loss.  Messages are sent in
    both runs.  No gradient changes, and running ledgers and meters count nothing.
    """
    costs = []
    # Read-only: the first part would copy an array that may change, the others save their inputs.
    x = Tensor(unchanging(x.data), x.requires_grad) if isinstance(x, Tensor) else unchanging(x)
    for part in parts:
        cost, x = _measure(part, x, parameters)
        costs.append(cost)
    loss_bytes = _measure(loss, x, parameters)[0].saved_bytes[0] if loss else 0
    return ChainProfile(tuple(costs), loss_bytes)


class _PartLedger(Ledger):
    """A ledger that also counts saves, and live bytes without the part's input."""

    def __init__(self, parameters: Sequence[Parameter], x: Any):
        super().__init__()
        owner = storage(x.data) if isinstance(x, Tensor) else None
        self._input, self.input, self.num_saved, self.most = id(owner), 0, 0, (0, 0)
        for parameter in parameters:
            if parameter.initialized:           # counted until it is freed, as gathered ones are
                self.add("parameters", parameter.data)
        if owner is not None and self._input not in self._known:
            self.input = owner.nbytes

    def kept(self) -> tuple[int, int]:
        """The live bytes of activations: all, and without the input."""
        activations = self.live_of["activations"]
        return activations, activations - self.input * self.holds(self._input)

    def holds(self, key: int) -> bool:
        """True if the storage with this id is saved."""
        return key in self._uses

    def _change(self, kind: str, num_bytes: int) -> None:
        super()._change(kind, num_bytes)
        self.most = tuple(map(max, self.most, self.kept()))

    def _pack(self, array: Array):
        self.num_saved += 1
        return super()._pack(array)


def _measure(part: Callable, x: Any, parameters: Sequence[Parameter]) -> tuple[PartProfile, Tensor]:
    if isinstance(x, Tensor):
        x = Tensor(x.data, requires_grad=x.requires_grad)
    ledger = _PartLedger(parameters, x)
    with ledger.recording(), Meter().running() as meter:
        y = part(x)
        tape, saves, forward = ledger.kept(), ledger.num_saved, meter.total_flops("forward")
        saves_output = ledger.holds(id(storage(y.data)))
        backward, targets = 0, backward_order(y.grad_target) if y.grad_target else ()
        for node in [target for target in targets if isinstance(target, Node)]:
            if node.function.metered:
                backward += sum(flops for flops, target in zip(node.ctx.backward_flops, node.inputs)
                                if target is not None)
            for saved in node.ctx.saved:
                saved()                         # recomputes, if it is of a segment inside the part
            node.ctx = node.inputs = saved = None
    again = _flops_until(saves, part, x) if saves else 0
    cost = PartProfile(ledger.input, tape, ledger.most, saves, int(saves_output), forward, again,
                       meter.total_flops("forward") - forward, backward)
    return cost, Tensor(y.data, requires_grad=y.requires_grad)


def _flops_until(num_saves: int, part: Callable, x: Any) -> int:
    """The FLOPs of a forward that stops after `num_saves` saved arrays."""
    def count(array: Array) -> type[StopForward] | None:
        nonlocal num_saves
        num_saves -= 1
        return None if num_saves else StopForward

    with Meter().running() as meter:
        try:
            with saved_tensors_hooks(count, lambda nothing: nothing, nested=False):
                part(x)
        except StopForward:
            pass
    return meter.total_flops("forward")
