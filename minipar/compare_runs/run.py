"""Run two programs and compare them: `find_difference(left, right, batches, ranks=(1, 4))`.

    def plain(comm, dtype):                                 the model in one process
        return Strategy(GPT(config).initialize(0, dtype), comm)

    def mine(comm, dtype):                                  a layout of one's own
        return MyStrategy(GPT(config).initialize(0, dtype), DeviceMesh(comm, pp=2, tp=2))

    print(find_difference(plain, mine, batches, ranks=(1, 4)))

A program is called on each of its ranks.  It returns what to train: a Strategy, or an object with
`model` and `forward_backward(microbatches)`.  It may return a pair of that and an optimizer, or a
Trained.  Or it calls `record` for whatever is to be compared, and returns None.  On one rank
the object may be given instead of a program.
"""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from ..autograd import Tensor
from ..comm import Cluster, Communicator
from ..comm.collectives import broadcast
from ..data.batches import Batch, shard_range
from ..nn import MoE
from ..optim import AdamW, clip_grad_norm
from ..parallel.strategy import Microbatch, Strategy
from .difference import Comparison, Difference
from .observe import StepObserver, gather_records, slabs_of
from .recorder import RecordedArray, Recorder

Program = Callable[..., Any]        # program(comm) or program(comm, dtype)
_recorder: ContextVar[Recorder | None] = ContextVar("recorder", default=None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Context in which `record` keeps arrays in `recorder`."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)


def record(name: str, values: Any, **place: Any) -> None:
    """Keep `values` for a comparison, as `Recorder.record` does; if none is made, do nothing."""
    recorder = _recorder.get()
    if recorder is not None:
        recorder.record(name, getattr(values, "data", values), **place)


class Side(NamedTuple):
    """A program and its number of ranks; each rank cuts its rows into `num_microbatches`."""

    program: Program
    num_ranks: int = 1
    num_microbatches: int = 1


def adamw(slabs: Sequence[Any]) -> AdamW:
    """AdamW, the optimizer if no other is given."""
    return AdamW(slabs, lr=1e-3, weight_decay=0.1)


class TrainingPlan(NamedTuple):
    """How programs are trained: `batches.batch(step)` for each of `steps`."""

    batches: Any
    steps: int
    optimizer: Callable[[Sequence[Any]], Any] = adamw
    clip: float = 1.0
    seed: int = 0


class Trained(NamedTuple):
    """What a program may return in the place of a strategy, to train in its own way.

    compute(microbatches, step) leaves the gradients of a batch, and returns its loss.  update(step)
    clips them, takes the step, and returns their norm, or None.  scale() is the loss scale of the
    next batch.
    """

    strategy: Any
    optimizer: Any
    compute: Callable[[list[Microbatch], int], float]
    update: Callable[[int], float | None]
    scale: Callable[[], float] = lambda: 1.0


def find_difference(left: Any, right: Any, batches: Any = None, *,
                    ranks: tuple[int, int] = (1, 2), steps: int = 2,
                    microbatches: tuple[int, int] = (1, 1), dtype: str = "float32",
                    optimizer: Callable[[Sequence[Any]], Any] = adamw, clip: float = 1.0,
                    seed: int = 0) -> Difference:
    """Run two programs on simulated ranks, in float64 and in `dtype`; compare what they compute.

    `ranks` and `microbatches` are pairs: left, right.  `batches` are global batches; each rank is
    given its rows.  One process on the left is given the microbatches of all ranks on the right,
    one after the other; with experts, joined.  The comparison ends with the first step that is
    different.

    Raises TypeError for what is no program, ValueError for an object on several ranks, and if
    nothing is recorded.
    """
    ours, theirs = (Side(program_of(program, size), size, count)
                    for program, size, count in zip((left, right), ranks, microbatches))
    plan = TrainingPlan(batches, steps, optimizer, clip, seed)
    results, _ = Cluster(max(ranks)).run(
        lambda comm: compare_sides(comm, ours, theirs, plan, dtype))
    return results[0]


def program_of(given: Any, num_ranks: int) -> Program:
    """`given` itself if it is a function; for an object, a function that copies it in any dtype."""
    if isinstance(given, type) or not hasattr(given, "forward_backward"):
        return given
    if num_ranks > 1:
        raise ValueError(f"{type(given).__name__} is an object on {num_ranks} ranks: give a "
                         "function main(comm, dtype) that makes one on each rank")

    def program(comm: Communicator, dtype: str) -> Any:
        made = copy.deepcopy(given)
        made.model.make_slabs(np.empty(0, dtype))
        return made
    return program


def compare_sides(comm: Communicator, left: Side, right: Side, plan: TrainingPlan, dtype: str
                  ) -> Difference | None:
    """Collective.  `find_difference` on the first ranks of `comm`; its result is on rank 0."""
    low = "float32" if dtype == "float64" else dtype
    wanted = [(right, "float64"), (left, "float64"), (left, low), (right, low)]
    runs = [ProgramRun(comm, *each, plan) for each in wanted[:3 if dtype == "float64" else 4]]
    comparison = Comparison(low)
    for step in range(plan.steps):
        exact_right = runs[0].step(step)
        blocks = blocks_of(exact_right) if left.num_ranks == 1 else {}
        exact, low_left = (run.step(step, blocks) for run in runs[1:3])
        low_right = runs[3].step(step) if dtype != "float64" else None
        if comm.rank == 0:
            comparison.add(exact, exact_right, low_left, low_right)
        is_different = np.array(comparison.found.verdict == "different", np.int64)
        if broadcast(comm, is_different.reshape(1))[0]:
            break
    if comm.rank == 0 and not (comparison.found.gaps or comparison.found.low_gaps):
        raise ValueError("nothing was recorded on either side: return a strategy, or call "
                         "record(name, values)")
    return comparison.found if comm.rank == 0 else None


class ProgramRun:
    """One program on the first ranks of `comm`, a step at a time, in `dtype`.  Collective."""

    def __init__(self, comm: Communicator, side: Side, dtype: str, plan: TrainingPlan):
        self.comm = comm.split(0 if comm.rank < side.num_ranks else None)
        self.side, self.plan, self.recorder = side, plan, Recorder(comm.rank)
        self.trained: Trained | None = None
        if self.comm is None:
            return
        with recording(self.recorder):
            made = side.program(self.comm, dtype) \
                if len(inspect.signature(side.program).parameters) > 1 else side.program(self.comm)
        if made is not None:
            self.trained = trained(made, plan)
            self.observer = StepObserver(self.trained.strategy, self.recorder)

    def step(self, step: int, blocks: "Blocks | None" = None) -> list[RecordedArray]:
        """Take a step; return what all ranks recorded since the last one: on rank 0, else []."""
        if self.comm is None:
            return []
        if self.trained is not None:
            with recording(self.recorder):
                self.train(step, blocks)
        records = self.recorder.records
        self.recorder.records = []
        return gather_records(self.comm, records) or []

    def train(self, step: int, blocks: "Blocks | None") -> None:
        """Take a step, and record it; `blocks`, if any, are the rows of its microbatches."""
        assert self.trained is not None and self.comm is not None
        batch, strategy = self.plan.batches.batch(step), self.trained.strategy
        rows = rows_of_blocks(blocks, strategy.model) if blocks \
            else rows_of(self.comm, strategy, batch, self.side.num_microbatches)
        recorded_step(self.observer, self.trained, step, batch, rows)


def recorded_step(observer: StepObserver, trained: Trained, step: int, batch: Batch,
                  rows: Sequence[np.ndarray]) -> float:
    """Take a step on these rows of the batch, a microbatch each; record it; return its loss."""
    observer.start(step, batch, rows, trained.scale())
    trained.optimizer.zero_grad()
    loss = trained.compute([Microbatch(*(array[each] for array in batch)) for each in rows], step)
    observer.gradients(loss)
    observer.updated(trained.update(step), trained.optimizer)
    return loss


def trained(made: Any, plan: TrainingPlan) -> Trained:
    """A Trained of what a program returned; the plan adds what it lacks, such as the optimizer."""
    if isinstance(made, Trained):
        return made
    strategy, *given = made if isinstance(made, tuple) else (made,)
    if not (hasattr(strategy, "forward_backward") and hasattr(strategy, "model")):
        raise TypeError(f"{strategy!r} cannot be trained: return a Strategy, an object with model "
                        "and forward_backward(microbatches), or None")
    optimizer = given[0] if given else plan.optimizer(slabs_of(strategy))

    def compute(microbatches: list[Microbatch], step: int) -> float:
        if isinstance(strategy, Strategy):
            return strategy.forward_backward(microbatches, plan.seed, step)
        loss = strategy.forward_backward(microbatches)
        return float(loss.data if isinstance(loss, Tensor) else loss)

    def update(step: int) -> float:
        slabs = slabs_of(strategy)
        clip = getattr(strategy, "clip_grad_norm", lambda most: clip_grad_norm(slabs, most))
        norm = clip(plan.clip)
        if hasattr(strategy, "step"):
            strategy.step(optimizer)
        else:
            optimizer.step()
        return float(norm)
    return Trained(strategy, optimizer, compute, update)


Blocks = dict[str, list[tuple[int, ...]]]       # rows of microbatches, by name: "microbatch 0"


def blocks_of(records: Sequence[RecordedArray]) -> Blocks:
    """The rows of the microbatches of all ranks, each set of rows once."""
    blocks: Blocks = {}
    for each in records:
        if each.name.startswith("microbatch "):
            rows = tuple(each.values.tolist())
            if rows and rows not in blocks.setdefault(each.name, []):
                blocks[each.name].append(rows)
    return blocks


def rows_of_blocks(blocks: Blocks, model: Any) -> list[np.ndarray]:
    """The rows of each microbatch of one process that computes what all ranks do.

    That process has one microbatch for each microbatch of each rank.  With experts it joins the
    microbatches of all ranks, since the losses of routers may be taken over all ranks.
    """
    if any(isinstance(module, MoE) for _, module in model.named_modules()):
        return [np.array(sorted(sum(rows, ())), int) for rows in blocks.values()]
    return [np.array(rows) for rows in sorted(sum(blocks.values(), []))]


def rows_of(comm: Communicator, strategy: Any, batch: Batch, num_microbatches: int
            ) -> list[np.ndarray]:
    """The rows of this rank's microbatches."""
    num_rows = len(batch.samples)
    mine = strategy.rows(num_rows) if hasattr(strategy, "rows") \
        else shard_range(num_rows, comm.rank, comm.size)
    return np.array_split(np.array(mine, int), num_microbatches)
