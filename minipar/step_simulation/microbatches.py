"""Microbatches that do the same share the work: those in the middle repeat the first.

    microbatch   0          1 … m-2                        m-1
    forward      computed   the same spans and messages    computed
    backward     computed   the same spans and messages    computed: it reduces the gradients

This is for strategies that reduce gradients once a batch: DDP, ZeRO-1.  A repeated forward keeps
as many bytes as the first until its backward.  Messages between stages are not repeated: the
executor sends them for each microbatch.

FSDP and ZeRO-2 send messages in each microbatch, beside its computation.  No message is under way
when a microbatch ends.  So without a pipeline two microbatches are computed, and the clock
adds the time of the others:

    microbatch   0          1          2 … m-1
                 computed   computed   each takes as long as microbatch 1

If all ranks take equally long for microbatch 1, they end it as far from each other as they began
it.  Then the next takes as long, too.  Otherwise `simulate_step` begins again and computes all.
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import numpy as np

from ..backend import Array
from ..backend.shape_array import ShapeArray
from ..memory.ledger import TEMPORARIES
from ..memory.temporaries import StepLedger
from ..parallel.pipeline.executor import RankBatch
from ..parallel.pipeline.schedule.actions import FORWARD, INPUT, Action
from ..parallel.strategy import Microbatch, Strategy
from .folded import FoldedCommunicator
from .rank_log import RankLog, play

ACTIVATIONS = "activations"
KEPT = (ACTIVATIONS, TEMPORARIES)


class WindowLedger(StepLedger):
    """A ledger that also knows the peak since `window` was set to the live bytes."""

    window = 0

    def _change(self, kind: str, num_bytes: int) -> None:
        super()._change(kind, num_bytes)
        self.window = max(self.window, self.live)


class Recorded(NamedTuple):
    """An action of the first microbatch: its calls, and what it does to memory.

    `kept` are the bytes that it leaves behind by kind, without the result `out`.  `above` are the
    most bytes during the action, beyond those before it.  `is_kept` is True if `out` is already
    among the activations that are kept.
    """

    program: list[tuple]
    kept: dict[str, int]
    above: int
    out: Array | None
    is_kept: bool


class Repeater:
    """Records the actions of a rank's first microbatch, and repeats them."""

    def __init__(self, log: RankLog, ledger: WindowLedger):
        self.log, self.ledger = log, ledger
        self.known: dict[Any, Recorded] = {}
        self.kept: dict[Any, ShapeArray] = {}       # what repeated actions leave behind

    def record(self, key: Any, run: Callable[[], Any]) -> Any:
        """Run an action of the first microbatch, and remember it; return its result."""
        ledger = self.ledger
        before, live_of = ledger.live, {kind: ledger.live_of[kind] for kind in KEPT}
        ledger.window = before
        with self.log.recording() as program:
            out = run()
        kept = {kind: ledger.live_of[kind] - live_of[kind] for kind in KEPT}
        is_kept = kept[TEMPORARIES] <= 0
        if out is not None and not is_kept:
            kept[TEMPORARIES] -= out.nbytes
        self.known[key] = Recorded(program, kept, ledger.window - before, like(out), is_kept)
        return out

    def repeat(self, key: Any, where: Any) -> Any:
        """Repeat an action for the microbatch `where`, whose bytes it keeps or frees."""
        action, ledger = self.known[key], self.ledger
        ledger._change(TEMPORARIES, action.above)
        play(action.program)
        ledger._change(TEMPORARIES, -action.above)
        for kind in KEPT:
            old = self.kept.pop((kind, where), None)
            num_bytes = action.kept[kind] + (old.nbytes if old is not None else 0)
            del old
            if num_bytes > 0 and key[0] in (FORWARD, INPUT):    # others leave nothing behind
                self.kept[kind, where] = ShapeArray(num_bytes, np.uint8)
                ledger.add(kind, self.kept[kind, where])
        out = like(action.out)
        if out is not None and not action.is_kept:
            ledger.add(TEMPORARIES, out)
        return out


def like(array: Array | None) -> ShapeArray | None:
    """A new array without numbers, of the shape of `array`; None if that is no array."""
    return ShapeArray(array.shape, array.dtype) if hasattr(array, "shape") else None


class RepeatingBatch(RankBatch):
    """A rank's work on a batch in a pipeline: for each kind of action all but two are repeated."""

    repeater: Repeater
    computed: AbstractSet[tuple[int, int]] = frozenset()    # stages and microbatches

    def run(self, row: Sequence[Action]) -> None:
        """Do all actions of the row: compute the first and the last of each kind and stage."""
        ends: dict[tuple[str, int], list[int]] = {}
        for kind, stage, i in row:
            ends.setdefault((kind, stage), [i, i])[1] = i
        self.computed = {(stage, i) for (_, stage), both in ends.items() for i in both}
        super().run(row)

    def _do(self, action: Action, x: Array | None, run: Callable) -> Array | None:
        kind, stage, i = action
        if (stage, i) in self.computed:
            if (kind, stage) in self.repeater.known:
                return run(action, x)
            return self.repeater.record((kind, stage), lambda: run(action, x))
        out = self.repeater.repeat((kind, stage), (stage, i))
        if kind == "F":
            self.in_flight[stage, i] = None
            self.most_in_flight = max(self.most_in_flight, len(self.in_flight) + len(self.deferred))
        elif kind != "I":
            del self.in_flight[stage, i]
        return out

    def poll(self) -> None:
        """Advance pending messages, and record that: a repeated backward advances them, too."""
        self.repeater.log.record(self.comm, self.strategy.poll)
        super().poll()

    def forward(self, action: Action, x: Array | None) -> Array:
        """The output of a stage."""
        return self._do(action, x, super().forward)

    def backward(self, action: Action, grad: Array | None) -> Array | None:
        """dx from dy, and the weights' gradients."""
        return self._do(action, grad, super().backward)

    def input_gradient(self, action: Action, grad: Array | None) -> Array | None:
        """dx from dy."""
        return self._do(action, grad, super().input_gradient)

    def weight_gradients(self, action: Action, _: None) -> None:
        """The weights' gradients."""
        self._do(action, None, super().weight_gradients)


def share_work(strategy: Strategy, comm: FoldedCommunicator, ledger: WindowLedger) -> None:
    """Let the microbatches of `strategy` share their work, where they do the same."""
    pipeline = strategy.pipeline
    if strategy.reduces_each_backward:
        if pipeline is None and not comm.cluster.fabric.shares_cores:   # ranks may wait for cores
            compute_two(strategy, comm)
        return
    if pipeline is not None and pipeline.batch_type is not RankBatch:
        return
    repeater = Repeater(comm.log, ledger)
    if pipeline is not None:
        pipeline.batch_type = type("Batch", (RepeatingBatch,), {"repeater": repeater})
        return
    compute = strategy.run_microbatch
    num_done = 0

    def run_microbatch(*arguments: Any) -> float:
        nonlocal num_done
        num_done += 1
        if num_done == 1:
            return repeater.record("all", lambda: compute(*arguments))
        if strategy.is_synchronizing:           # the last one, which reduces
            return compute(*arguments)
        repeater.repeat("all", num_done)
        return float("nan")
    vars(strategy)["run_microbatch"] = run_microbatch


def compute_two(strategy: Strategy, comm: FoldedCommunicator) -> None:
    """Let each batch of `strategy` compute two microbatches, and add the time of the others."""
    compute = strategy.run_batch

    def run_batch(microbatches: Sequence[Microbatch], *arguments: Any) -> float:
        compute(microbatches[:1], *arguments)
        comm.repeat(lambda: compute(microbatches[1:2], *arguments), len(microbatches) - 2)
        return float("nan")
    vars(strategy)["run_batch"] = run_batch


def are_steady(logs: Iterable[RankLog]) -> bool:
    """True if the microbatches that ranks repeated were equally long, but for rounding."""
    lengths = [log.repeated for log in logs]
    return max(lengths) - min(lengths) <= 1e-9 * max(lengths)
