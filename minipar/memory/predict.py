"""What a plan of rematerialization costs, before it runs: bytes at the peak, FLOPs, computations.

    part          0    1    2         plan (0, (1, 2), 3):
    forward       ●    ○    ○    ●    ● keeps what it saves, ○ drops it; (1, 2) keeps its input
    again              ●    ●         up to the last array that it saves, then the input goes
    backward      ◀    ◀    ◀    ◀

Backward is through with a part, and has freed all that it kept, before it comes to the one before.
So while the segment is computed again only what stands at its left is alive, and live bytes have a
maximum where a run of parts ends: forward at the loss, and each segment when it was computed again.
With what each part keeps known (`measure_parts`), `predict` finds the highest by recursion.

Parts share storages only where one hands its output to the next: ReLU saves its result, and the
layer behind it the same array as its input.  Griewank & Walther 2000; Chen et al. 2016.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ..autograd import Meter, Tensor, saved_tensors_hooks
from ..autograd.engine import count_consumers
from ..autograd.function import Enough
from ..autograd.tensor import GradientSlot, Node
from ..backend import Array, storage
from ..nn.parameter import Parameter
from .ledger import Ledger
from .plans import Plan, parts_of


class PartCost(NamedTuple):
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
    inside: int                 # and of what it computes again by itself in its backward

    @property
    def saves_input(self) -> bool:
        """Whether its input is among what it saves."""
        return self.tape[0] > self.tape[1]


class Costs(NamedTuple):
    """Of a chain of parts, and the bytes that the loss after them saves."""

    parts: tuple[PartCost, ...]
    loss: int = 0


class Price(NamedTuple):
    """What a plan costs: bytes of activations at the peak, FLOPs more than one forward takes, and
    how often the forward of each part is begun."""

    peak: int
    extra_flops: int
    runs: tuple[int, ...]


# ---- what a chain costs, by any plan


def predict(plan: Plan, costs: Costs) -> Price:
    """What running the parts by `plan`, the loss, and backward cost.

    Equal to what a ledger and a meter count.  Raises ValueError if the plan is not one of all
    parts in their order.
    """
    if parts_of(plan) != list(range(len(costs.parts))):
        raise ValueError(f"the plan {plan} is to name the parts 0 … {len(costs.parts) - 1}, each "
                         "once and in this order")
    runs: Counter[int] = Counter()
    peak, flops = _level(plan, costs, runs, False, costs.loss, False)
    plain = sum(part.forward for part in costs.parts)
    return Price(peak, flops - plain, tuple(runs[i] for i in range(len(costs.parts))))


def _level(plan: Plan, costs: Costs, runs: Counter, held: bool, end: int,
           again: bool) -> tuple[int, int]:
    """(peak bytes, FLOPs) of running these items, and their backward.

    `held`: someone else keeps the input.  `end`: bytes that come on top when the last item has
    run.  `again`: this is a recomputation, which ends as soon as all is there that was wanted.
    """
    if not plan:
        return end, 0
    item, *others = plan
    is_last = again and not any(costs.parts[i].saves for i in parts_of(others))
    if isinstance(item, int):
        part = costs.parts[item]
        runs[item] += bool(part.saves or not is_last)
        peak, flops = _level(others, costs, runs, bool(part.saves_output), end, again)
        return (max(part.tape[held] + peak, part.most[held]),
                flops + part.inside + (part.again if is_last else part.forward))
    inner = parts_of(item)
    if not is_last:
        runs.update(inner)
    peak, flops = _level(others, costs, runs, False, end, again)
    flops += 0 if is_last else sum(costs.parts[i].forward for i in inner)
    if not any(costs.parts[i].saves for i in inner):
        return peak, flops
    own = 0 if held else costs.parts[inner[0]].input
    keeps = isinstance(item[0], tuple) or costs.parts[inner[0]].saves_input
    peak_again, flops_again = _level(item, costs, runs, held, 0 if keeps else own, True)
    return max(own + peak, peak_again), flops + flops_again


# ---- what each part costs


def measure_parts(parts: Sequence[Callable], x: Any, loss: Callable[[Tensor], Tensor] | None = None,
                  parameters: Sequence[Parameter] = ()) -> Costs:
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
    return Costs(tuple(costs), _measure(loss, x, parameters)[0].tape[0] if loss else 0)


class _PartLedger(Ledger):
    """A ledger that counts apart what is alive beside the input, and counts saves."""

    def __init__(self, parameters: Sequence[Parameter], x: Any):
        super().__init__(parameters)
        owner = storage(x.data) if isinstance(x, Tensor) else None
        self._input = id(owner)
        self.input = 0 if owner is None or self._input in self._known else owner.nbytes
        self.num_saved = 0
        self.most = 0, 0

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


def _measure(part: Callable, x: Any, parameters: Sequence[Parameter]) -> tuple[PartCost, Tensor]:
    if isinstance(x, Tensor):
        x = Tensor(x.data, requires_grad=x.requires_grad)
    ledger = _PartLedger(parameters, x)
    with ledger.recording(), Meter().running() as meter:
        y = part(x)
        tape, saves, forward = ledger.kept(), ledger.num_saved, meter.total_flops("forward")
        saves_output = ledger.holds(id(storage(y.data)))
        for node in backwards(y):
            for saved in node.ctx.saved:
                saved()                         # here a segment inside the part computes again
            node.ctx = node.edges = saved = None
    again = _flops_until(saves, part, x) if saves else 0
    cost = PartCost(ledger.input, tape, ledger.most, saves, int(saves_output), forward, again,
                    meter.total_flops("forward") - forward)
    return cost, Tensor(y.data, requires_grad=y.requires_grad)


def _flops_until(num_saves: int, part: Callable, x: Any) -> int:
    """FLOPs of a forward that ends when so many arrays were saved."""
    def count(array: Array) -> type[Enough] | None:
        nonlocal num_saves
        num_saves -= 1
        return None if num_saves else Enough

    with Meter().running() as meter:
        try:
            with saved_tensors_hooks(count, lambda nothing: nothing, nested=False):
                part(x)
        except Enough:
            pass
    return meter.total_flops("forward")


def backwards(y: Tensor) -> Iterator[Node]:
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
