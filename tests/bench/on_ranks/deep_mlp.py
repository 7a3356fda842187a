"""The deep MLP of `small_models.py` on two real ranks, against plain NumPy and mpi4py.

    dp = 2      each rank 4 microbatches of 16 samples; NumPy reduces each parameter by itself
    pp = 2      GPipe with 4 microbatches of 32; NumPy sends and receives in turn

Both train on the same samples from the same weights, and their losses are compared first.
"""

from collections.abc import Callable, Iterator

from minipar.backend.malloc import keep_freed_memory
from minipar.comm import Communicator
from minipar.comm.mesh import DeviceMesh
from minipar.data import Batch
from minipar.nn import MLP
from minipar.optim import SGD
from minipar.parallel.registry import make_strategy
from minipar.parallel.strategy import Strategy

from ..baselines import numpy_mlp
from ..small_models import BATCH, NUM_MICROBATCHES, RATE, SIZES, make_batch
from ..timing import Row, check_same, milliseconds, seconds_of_slowest


def training_step(strategy: Strategy, batch: Batch) -> Callable[[], float]:
    """A step of minipar on this rank's rows of the batch; it returns the loss."""
    optimizer = SGD(strategy.slabs, lr=RATE)

    def step() -> float:
        optimizer.zero_grad()
        mine = batch.select(strategy.rows(BATCH)).split(NUM_MICROBATCHES)
        loss = strategy.forward_backward(mine)
        strategy.step(optimizer)
        return loss
    return step


def pairs(comm: Communicator) -> dict[str, dict[str, Callable[[], float]]]:
    """For each way to use two ranks, a step of minipar and one of NumPy; they return the loss."""
    batch, mpi = make_batch(), comm.mpi_comm

    def model() -> MLP:
        return MLP(SIZES).initialize(seed=0)

    layers, stage = (numpy_mlp.make_layers(model().state_dict()) for _ in range(2))
    half = len(stage) // 2
    stage = stage[:half] if comm.rank == 0 else stage[half:]
    data_parallel = make_strategy("ddp", model(), comm)
    mine = batch.select(data_parallel.rows(BATCH))

    def numpy_data_parallel() -> float:
        return mpi.allreduce(numpy_mlp.step(
            layers, mine.split(NUM_MICROBATCHES), BATCH, RATE, mpi))

    def numpy_pipeline() -> float:
        return mpi.allreduce(numpy_mlp.gpipe_step(
            stage, batch.split(NUM_MICROBATCHES), BATCH, RATE, mpi))
    pipeline = make_strategy("ddp", model(), DeviceMesh(comm, pp=2), schedule="gpipe")
    return {"dp = 2": {"minipar": training_step(data_parallel, batch),
                       "NumPy": numpy_data_parallel},
            "pp = 2, GPipe": {"minipar": training_step(pipeline, batch),
                              "NumPy": numpy_pipeline}}


def measure(comm: Communicator, num_rounds: int) -> Iterator[Row]:
    """Yield the rows; `comm` has two ranks."""
    keep_freed_memory()
    for what, steps in pairs(comm).items():
        check_same(what, steps)
        seconds = seconds_of_slowest(comm, steps, 20 * num_rounds)
        ours, theirs = seconds["minipar"], seconds["NumPy"]
        yield Row(f"MLP of 7 layers, {what}",
                  f"{milliseconds(ours)}, {BATCH / ours:,.0f} samples/s",
                  f"NumPy and mpi4py {milliseconds(theirs)}", theirs / ours)
