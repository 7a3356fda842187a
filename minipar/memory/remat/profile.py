"""What each part of a chain costs: run it once, look at what it keeps, and drop that.

    a block    is given 24.6 kB, saves 488 kB, computes 7.92 MFLOPs (7.9 up to the last array saved)

Shape-only arrays (`shape_array.py`) will do, so that a model is planned that no machine here holds.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...autograd import Meter, Tensor, saved_tensors_hooks
from ...autograd.graph import count_consumers
from ...autograd.saved import StopForward
from ...autograd.tensor import GradientSlot, Node
from ...backend import Array
from ...backend.views import storage
from ...nn.parameter import Parameter
from ..ledger import Ledger


class PartProfile(NamedTuple):
    """What one part keeps, in bytes, and computes, in FLOPs.

    Of a pair the first is all of it, the second what it is if its input is being kept already.
    """

    input: int                  # its input; 0 if that is plain data or a parameter
    tape: tuple[int, int]       # what it saves in forward
    most: tuple[int, int]       # what is alive at most in its backward: more if it recomputes
    saves: int                  # arrays that it saves, parameters too
    saves_output: int           # 1 if its output is among them
    forward: int                # FLOPs of its forward,
    again: int                  # of a forward that ends with the last array that it saves,
    inside: int                 # of what it computes again by itself in its backward,
    backward: int               # and of that backward itself

    @property
    def saves_input(self) -> bool:
        """Whether its input is among what it saves."""
        return self.tape[0] > self.tape[1]


class ChainProfile(NamedTuple):
    """Of a chain of parts, and the bytes that the loss after them saves."""

    parts: tuple[PartProfile, ...]
    loss: int = 0


def profile_parts(parts: Sequence[Callable], x: Any, loss: Callable[[Tensor], Tensor] | None = None,
                  parameters: Sequence[Parameter] = ()) -> ChainProfile:
    """Run each part, forget all of it but its output, and give that to the next.

    `x`: the input of the first part, as the model gives it (array or Tensor); shape-only arrays
    will do.  `parameters`: those in use, which are no activations.  Every part runs twice, the
    loss once; messages that it sends are sent, but no gradient is touched, and ledgers and meters
    that are running see nothing.
    """
    costs = []
    for part in parts:
        cost, x = _measure(part, x, parameters)
        costs.append(cost)
    return ChainProfile(tuple(costs), _measure(loss, x, parameters)[0].tape[0] if loss else 0)


class _PartLedger(Ledger):
    """A ledger that counts apart what is alive beside the input, and counts saves."""

    def __init__(self, parameters: Sequence[Parameter], x: Any):
        super().__init__()
        owner = storage(x.data) if isinstance(x, Tensor) else None
        self._input, self.input, self.num_saved, self.most = id(owner), 0, 0, (0, 0)
        for parameter in parameters:
            if parameter.initialized:           # not for ever: gathered ones go, and others come
                self.add("parameters", parameter.data)
        if owner is not None and self._input not in self._known:
            self.input = owner.nbytes

    def kept(self) -> tuple[int, int]:
        """Bytes alive: all, and without the input."""
        activations = self.live_of["activations"]
        return activations, activations - self.input * self.holds(self._input)

    def holds(self, key: int) -> bool:
        """Whether the storage with this id is saved."""
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
        backward = 0
        for node in backward_order(y):
            if node.function.metered:
                backward += sum(flops for flops, edge in zip(node.ctx.backward_flops, node.edges)
                                if edge is not None)
            for saved in node.ctx.saved:
                saved()                         # here a segment inside the part computes again
            node.ctx = node.edges = saved = None
    again = _flops_until(saves, part, x) if saves else 0
    cost = PartProfile(ledger.input, tape, ledger.most, saves, int(saves_output), forward, again,
                    meter.total_flops("forward") - forward, backward)
    return cost, Tensor(y.data, requires_grad=y.requires_grad)


def _flops_until(num_saves: int, part: Callable, x: Any) -> int:
    """FLOPs of a forward that ends when so many arrays were saved."""
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


def backward_order(y: Tensor) -> Iterator[Node]:
    """The nodes behind y in the order in which backward visits them."""
    if y.edge is None:
        return
    waiting, todo = count_consumers(y.edge), [y.edge]
    while todo:
        edge = todo.pop()
        waiting[edge] -= 1
        if isinstance(edge, GradientSlot) or waiting[edge]:
            continue
        edges = [target for target in edge.edges if target is not None]
        todo += sorted(edges, key=lambda target: target.weight_only)    # those come first
        yield edge
