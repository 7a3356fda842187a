"""Run two programs and compare them: `find_difference(left, right, batches, ranks=(1, 4))`.

    def plain(comm, dtype):                                 the model in one process
        return Strategy(GPT(config).initialize(0, dtype), comm)

    def mine(comm, dtype):                                  a layout of one's own
        return MyStrategy(GPT(config).initialize(0, dtype), DeviceMesh(comm, pp=2, tp=2))

    print(find_difference(plain, mine, batches, ranks=(1, 4)))

A program is called on each of its ranks.  It returns what to train, a Strategy or an object with
`model` and `forward_backward(microbatches)`, or that and an optimizer.  Or it returns None and has
called `record` for whatever is to be compared.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from ..comm import Cluster, Communicator
from ..data.batches import Batch, shard_range
from ..nn import MoE
from ..optim import AdamW, clip_grad_norm
from ..parallel.strategy import Microbatch, Strategy
from .difference import Difference, find
from .observe import Observer, slabs_of
from .recorder import Record, Recorder

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
    """Keep `values` for a comparison, as `Recorder.record`; nothing, if none is being made."""
    recorder = _recorder.get()
    if recorder is not None:
        recorder.record(name, getattr(values, "data", values), **place)


class Plan(NamedTuple):
    """How programs are trained: `batches.batch(step)` for each of `steps`."""

    batches: Any
    steps: int
    optimizer: Callable[[Sequence[Any]], Any]
    clip: float
    seed: int


def adamw(slabs: Sequence[Any]) -> AdamW:
    """The optimizer, if no other is given."""
    return AdamW(slabs, lr=1e-3, weight_decay=0.1)


def find_difference(left: Program, right: Program, batches: Any = None, *,
                    ranks: tuple[int, int] = (1, 2), steps: int = 2,
                    microbatches: tuple[int, int] = (1, 1), dtype: str = "float32",
                    optimizer: Callable[[Sequence[Any]], Any] = adamw, clip: float = 1.0,
                    seed: int = 0) -> Difference:
    """Run two programs on simulated ranks, in float64 and in `dtype`; compare what they compute.

    `ranks` and `microbatches` are those of left and right.  `batches` are global batches, of which
    each rank is given its rows.  One process on the left is given the microbatches of all ranks on
    the right, one after the other.
    """
    plan = Plan(batches, steps, optimizer, clip, seed)
    exact_right = simulate_run(right, ranks[1], plan, "float64", microbatches[1])
    blocks = blocks_of(exact_right) if ranks[0] == 1 else None

    def run_left(dtype: str) -> list[Record]:
        return simulate_run(left, ranks[0], plan, dtype, microbatches[0], blocks)
    low = "float32" if dtype == "float64" else dtype
    low_right = None if dtype == "float64" else \
        simulate_run(right, ranks[1], plan, dtype, microbatches[1])
    return find(run_left("float64"), exact_right, run_left(low), low_right, low)


Blocks = dict[int, dict[str, list[tuple[int, ...]]]]     # rows of microbatches, by step and name


def blocks_of(records: Sequence[Record]) -> Blocks:
    """The rows of the microbatches of all ranks, by step, and by name: "microbatch 0"."""
    found: Blocks = {}
    for each in records:
        if each.name.startswith("microbatch "):
            blocks, rows = found.setdefault(each.step, {}), tuple(each.values.tolist())
            if rows and rows not in blocks.setdefault(each.name, []):
                blocks[each.name].append(rows)
    return found


def rows_of_blocks(blocks: dict[str, list[tuple[int, ...]]], model: Any) -> list[np.ndarray]:
    """The rows of one process's microbatches: those of each rank; of all ranks, for experts.

    The losses of routers may be those of a microbatch over all ranks.
    """
    if any(isinstance(module, MoE) for _, module in model.named_modules()):
        return [np.array(sorted(sum(blocks[name], ())), int) for name in blocks]
    return [np.array(rows) for rows in sorted(sum(blocks.values(), []))]


def simulate_run(program: Program, num_ranks: int, plan: Plan, dtype: str, num_microbatches: int,
                 blocks: Blocks | None = None) -> list[Record]:
    """The records of a program on simulated ranks."""
    results, _ = Cluster(num_ranks).run(
        lambda comm: record_rank(comm, program, plan, dtype, num_microbatches, blocks))
    return [each for records in results for each in records]


def record_rank(comm: Communicator, program: Program, plan: Plan, dtype: str,
                num_microbatches: int, blocks: Blocks | None = None
                ) -> list[Record]:
    """Collective.  This rank's records of a program; `blocks` are the rows of its microbatches."""
    recorder = Recorder(comm.rank)
    with recording(recorder):
        made = program(comm, dtype) if len(inspect.signature(program).parameters) > 1 \
            else program(comm)
        if made is not None:
            strategy, optimizer = made if isinstance(made, tuple) else (made, None)
            train(comm, strategy, optimizer or plan.optimizer(slabs_of(strategy)), plan, recorder,
                  num_microbatches, blocks)
    return recorder.records


def train(comm: Communicator, strategy: Any, optimizer: Any, plan: Plan, recorder: Recorder,
          num_microbatches: int, blocks: Blocks | None) -> None:
    """Take the steps of a plan, and record them."""
    observer = Observer(strategy, recorder)
    for axis in getattr(getattr(strategy, "mesh", None), "axes", ()):
        recorder.record(f"axis {axis}", strategy.mesh.coordinate(axis), "layout")
    for step in range(plan.steps):
        batch = plan.batches.batch(step)
        rows = rows_of_blocks(blocks[step], strategy.model) if blocks \
            else rows_of(comm, strategy, batch, num_microbatches)
        for i, each in enumerate(rows):
            recorder.record(f"microbatch {i}", each, "layout", step)
        microbatches = [Microbatch(*(array[each] for array in batch)) for each in rows]
        observer.start(step, batch, rows)
        optimizer.zero_grad()
        loss = strategy.forward_backward(microbatches, plan.seed, step) \
            if isinstance(strategy, Strategy) else strategy.forward_backward(microbatches)
        observer.gradients(loss)
        clip = getattr(strategy, "clip_grad_norm", lambda most: clip_grad_norm(
            slabs_of(strategy), most))
        norm = clip(plan.clip)
        (strategy.step(optimizer) if hasattr(strategy, "step") else optimizer.step())
        observer.updated(norm, optimizer)
    observer.close()


def rows_of(comm: Communicator, strategy: Any, batch: Batch, num_microbatches: int
            ) -> list[np.ndarray]:
    """The rows of this rank's microbatches."""
    num_rows = len(batch.samples)
    mine = strategy.rows(num_rows) if hasattr(strategy, "rows") \
        else shard_range(num_rows, comm.rank, comm.size)
    return np.array_split(np.array(mine, int), num_microbatches)
