"""Two layouts of one run, side by side: --verify, `minipar compare`.  Also records a run.

    side_of(config, n)          what compare_runs/ runs: the run of a configuration, in any dtype
    plain(config)               the same run on one rank: no mesh, no strategy, nothing sent
    compare_with_one_rank       a run beside its plain run, for the first --verify steps
    compare_layouts             two configurations, for `minipar compare`
    recorded                    the steps of a run, recorded for run.record

`Strategy`, the base of all strategies, trains the plain run.  So none of the code that is compared
with the plain run takes part in it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from ...comm import Communicator
from ...comm.collectives import broadcast
from ...compare_runs.difference import Difference
from ...compare_runs.observe import StepObserver
from ...compare_runs.recorder import Recorder
from ...compare_runs.run import Side, Trained, TrainingPlan, compare_sides, recorded_step, rows_of
from ...launcher import UsageError
from ...parallel.expert.router_bias import forget_loads
from ...parallel.registry import entry_of
from ...parallel.strategy import Microbatch, Strategy
from ..check import checked
from ..config import TrainConfig
from ..loop import (
    TrainState,
    check_finite,
    gradients_of,
    on_device,
    take_step,
    update_parameters,
)
from ..setup.mesh import num_mesh_ranks
from ..setup.precision import FULL_PRECISION
from ..setup.remat import remat_in_float64
from ..setup.strategy import STRATEGY_OPTIONS, num_microbatches
from ..start import start_run
from ..tasks import make_task

PLAIN = "minipar.parallel.strategy:Strategy"
RESET = {"resume": None, "record": None, "out": None, "save_every": 0, "memory_limit": None,
         "verify": 0}


def plain(config: TrainConfig) -> TrainConfig:
    """The run on one rank, without the options that spread it over ranks or save memory."""
    return config.updated(**dict.fromkeys(STRATEGY_OPTIONS), strategy=PLAIN, mesh=None,
                          accumulate=1, schedule=None, microbatches=None, virtual_stages=None,
                          sequence_parallel=False, context_method=None, context_order=None,
                          ulysses_degree=None, offload="", remat="none", **FULL_PRECISION | {
                              "precision": config.precision.compute,
                              "loss_scale": config.precision.loss_scale})


def dtype_of(config: TrainConfig) -> str:
    """The format in which a run computes: float64, float32, bf16 …"""
    compute = config.precision.compute
    return config.precision.dtype if compute == "fp32" else compute


def in_dtype(config: TrainConfig, dtype: str) -> TrainConfig:
    """The run in `dtype`: unchanged if that is its own, else all in float32 or float64."""
    if dtype == dtype_of(config):
        return config
    remat = remat_in_float64(config) if dtype == "float64" else config.memory.remat
    return config.updated(dtype=dtype, remat=remat, **FULL_PRECISION)


def side_of(config: TrainConfig, num_ranks: int) -> Side:
    """The run of a configuration on `num_ranks` ranks, for `compare_sides`."""
    def program(comm: Communicator, dtype: str) -> Trained:
        chosen = in_dtype(config, dtype)
        return trained_by(start_run(comm, chosen, make_task(chosen)))
    return Side(program, num_ranks, num_microbatches(config))


def trained_by(state: TrainState) -> Trained:
    """The functions that compare_runs/ calls to train a run: gradients, update, loss scale."""
    goes_on = True                      # False after an overflow: the step is skipped

    def compute(microbatches: list[Microbatch], step: int) -> float:
        nonlocal goes_on
        inputs = [each.inputs if each.inputs.dtype.kind in "iu" else
                  each.inputs.astype(state.config.precision.dtype) for each in microbatches]
        loss = gradients_of(state, step, on_device(state, [
            each._replace(inputs=x) for each, x in zip(microbatches, inputs)]))
        goes_on = check_finite(state, loss, step)
        return loss

    def update(step: int) -> float | None:
        if goes_on:
            return update_parameters(state, step)
        forget_loads(state.strategy)
        return None
    return Trained(state.strategy, state.optimizer, compute, update,
                   lambda: state.scaler.scale if state.scaler else 1.0)


@contextmanager
def recorded(state: TrainState, rank: int) -> Iterator[Callable[[TrainState, int], float]]:
    """Context of a run; yields the function that takes a step.

    With run.record it records the first run.record_steps steps, and writes them at the end.
    """
    run, recorder = state.config.run, Recorder(rank)
    if run.record is None:
        yield take_step
        return
    if rank == 0:
        for old in run.record.glob("rank*.npz"):        # perhaps of a run on more ranks
            old.unlink()
    observer, trained = StepObserver(state.strategy, recorder), trained_by(state)

    def take(state: TrainState, step: int) -> float:
        if step >= state.first_step + run.record_steps:
            return take_step(state, step)
        batch = state.task.batches.batch(step)
        rows = rows_of(state.strategy.comm, state.strategy, batch, state.num_microbatches)
        return recorded_step(observer, trained, step, batch, rows)
    yield take
    observer.close()
    recorder.write(run.record / f"rank{rank}.npz")


def plan_of(config: TrainConfig, steps: int) -> TrainingPlan:
    """The plan of a comparison: the batches of a run, for `steps` steps."""
    return TrainingPlan(make_task(config).batches, steps)


def compare_with_one_rank(comm: Communicator, config: TrainConfig) -> Difference:
    """Collective.  Compare the first --verify steps with the same steps on one rank, in float64.

    The result has the verdict on all ranks, and the gaps on rank 0 only.
    """
    steps = config.run.verify
    config = config.updated(steps=steps, warmup=0, **RESET)
    found = compare_sides(comm, side_of(plain(config), 1), side_of(config, comm.size),
                          plan_of(config, steps), "float64")
    is_different = broadcast(comm, np.array([found is not None and found.verdict == "different"],
                                            np.int64))
    return found or Difference("different" if is_different[0] else "equal", [], [], "float32")


def compare_layouts(comm: Communicator, left: TrainConfig, right: TrainConfig, steps: int
                    ) -> Difference | None:
    """Collective.  Compare the first steps of two configurations; the result is on rank 0."""
    return compare_sides(comm, side_of(left, ranks_of(left)), side_of(right, ranks_of(right)),
                         plan_of(right, steps), dtype_of(right))


def ranks_of(config: TrainConfig) -> int:
    """The number of ranks of the configuration's mesh; 1 without a mesh."""
    return num_mesh_ranks(config.parallel.mesh) if config.parallel.mesh else 1


def layout(config: TrainConfig, mesh: str) -> TrainConfig:
    """The configuration on another mesh; on one rank the plain run.  Raises UsageError."""
    chosen = config.updated(mesh=mesh, warmup=0, **RESET)
    if num_mesh_ranks(mesh) == 1:
        return checked(plain(chosen))
    chosen, strategy = checked(chosen), config.parallel.strategy
    if entry_of(strategy).specification is not Strategy:
        raise UsageError(f"--strategy {strategy} does not equal one process, so there is nothing "
                         "to compare it with: choose another one")
    return chosen
