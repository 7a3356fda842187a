"""1F1B on two real ranks: against PyTorch's, against one rank, and against its lower bound.

    MLP 784-512×6-10, a batch of 512 in 4 microbatches, SGD; rank 0 has 3 layers, rank 1 has 4

    1F1B       the step                                                             T
    PyTorch    Schedule1F1B of torch.distributed.pipelining on gloo, the same stages
    alone      minipar on rank 0, the whole model; rank 1 sleeps                    T₁ / T
    apart      both stages on rank 0, one after the other, without messages; rank 1 sleeps
    together   both at the same time, each on its rank: the effect of two busy cores on each other

From the seconds of the stages, apart or together, `simulate` predicts the time of 1F1B with free
messages, bubble and unequal stages included: a lower bound of T.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from minipar.autograd import Tensor, backward, cross_entropy
from minipar.backend.malloc import keep_freed_memory
from minipar.comm import Communicator
from minipar.comm.collectives import all_gather, all_reduce
from minipar.comm.mesh import DeviceMesh
from minipar.nn import MLP, Sequential
from minipar.nn.chain import chain
from minipar.optim import SGD
from minipar.parallel.pipeline.cut_points import cut_evenly
from minipar.parallel.pipeline.schedule.registry import make_schedule
from minipar.parallel.pipeline.schedule.simulate import Times, simulate
from minipar.parallel.strategy import Microbatch, Strategy

from ..timing import Row, check_same, import_torch, milliseconds, seconds_of_slowest
from .data_parallel_pytorch import connect

SIZES, BATCH, NUM_MICROBATCHES, RATE = (784, *[512] * 6, 10), 512, 4, 1e-3
SCHEDULE, THEIRS = "1f1b", "PyTorch 1F1B, gloo"


class Stage:
    """A stage of the model on one rank, without messages; each step adds to `seconds`."""

    def __init__(self, number: int, batches: list[Microbatch]):
        parts = chain(make_model())
        cut, = cut_evenly([part.num_parameters() for part in parts], 2)
        mine = parts[cut:] if number else parts[:cut]
        self.model = Sequential(*[module for part in mine for module in part.modules])
        self.number, self.batches = number, batches
        self.optimizer = SGD(self.model.initialize(seed=0).slabs, lr=RATE)
        self.between = np.ones((len(batches[0].inputs), SIZES[cut]), np.float32)
        self.seconds: list[tuple[float, float, float]] = []     # forward, backward, the rest

    def step(self) -> None:
        """Forward and backward of every microbatch, and the optimizer's step."""
        start, forward, back = time.perf_counter(), 0.0, 0.0
        self.optimizer.zero_grad()
        for batch in self.batches:
            first = time.perf_counter()
            if self.number == 0:
                y, grad = self.model(Tensor(batch.inputs)), self.between
            else:
                x = Tensor(self.between, requires_grad=True)
                y, grad = cross_entropy(self.model(x), batch.targets, BATCH), None
            middle = time.perf_counter()
            backward(y, grad)
            end = time.perf_counter()
            forward, back = forward + middle - first, back + end - middle
        self.optimizer.step()
        rest, m = time.perf_counter() - start - forward - back, len(self.batches)
        self.seconds.append((forward / m, back / m, rest))


def measure(comm: Communicator, num_rounds: int) -> list[Row]:
    """The rows, on rank 0; `comm` has two ranks."""
    keep_freed_memory()
    draw, rows = np.random.default_rng(0), BATCH // NUM_MICROBATCHES
    batches = [Microbatch(draw.standard_normal((rows, SIZES[0])).astype(np.float32),
                          draw.integers(SIZES[-1], size=rows), np.arange(i * rows, (i + 1) * rows))
               for i in range(NUM_MICROBATCHES)]
    steps = {SCHEDULE: make_step(make_pipeline(comm), batches)}
    torch = import_torch()
    with tempfile.TemporaryDirectory() as directory:
        if torch is not None:
            connect(torch, comm, Path(directory))
            steps[THEIRS] = torch_step(torch, comm, batches)
            check_same("a batch through two stages", {
                name: lambda step=step: _total(comm, step()) for name, step in steps.items()})
        steps |= {"alone": make_step(Strategy(make_model(), comm.split(comm.rank)), batches),
                  "first": (first := Stage(0, batches)).step,
                  "second": (second := Stage(1, batches)).step}
        if comm.rank:                   # rank 0 does these, and this one sleeps
            steps |= dict.fromkeys(("alone", "first", "second"), lambda: None)
        steps["together"] = (mine := Stage(comm.rank, batches)).step
        seconds = seconds_of_slowest(comm, steps, num_rounds)
        if torch is not None:
            torch.distributed.destroy_process_group()
    together = all_gather(comm, middle(mine, num_rounds)).reshape(comm.size, -1)
    if comm.rank:
        return []
    apart = [middle(stage, num_rounds) for stage in (first, second)]
    return report(seconds, {"apart": predict(apart), "together": predict(together)})


def report(seconds: dict[str, float], predicted: dict[str, float]) -> list[Row]:
    """The rows, from median seconds by step and what 1F1B should take by kind of stage."""
    ours, alone = seconds[SCHEDULE], seconds["alone"]
    rate = f"{milliseconds(ours)}, {BATCH / ours:,.0f} samples/s"
    what = f"MLP 784-512×6-10, {SCHEDULE} on 2 ranks, {NUM_MICROBATCHES} × " \
           f"{BATCH // NUM_MICROBATCHES} samples"
    rows = [Row(what, rate, f"{THEIRS} {milliseconds(seconds[THEIRS])}", seconds[THEIRS] / ours,
                1.15) if THEIRS in seconds else Row(what, rate)]
    rows.append(Row("  speed-up over one rank", milliseconds(ours),
                    f"1 rank {milliseconds(alone)}", alone / ours))
    return rows + [Row(f"  share of the ideal speed-up, {when}", f"{alone / ours:.2f} ×",
                       f"{alone / predicted[name]:.2f} ×", predicted[name] / ours, 0.90)
                   for name, when in (("apart", "stages timed one by one"),
                                      ("together", "at the same time"))]


def middle(stage: Stage, num_rounds: int) -> np.ndarray:
    """The median seconds of a stage's forward, backward and rest, without the warm-up."""
    return np.median(stage.seconds[-num_rounds:], axis=0)


def predict(stages: Sequence[np.ndarray]) -> float:
    """Seconds of a step with free messages, from the seconds of the stages."""
    schedule, placement = make_schedule(SCHEDULE, len(stages), NUM_MICROBATCHES)
    times = [Times(forward, back, 0) for forward, back, _ in stages]
    return simulate(schedule, times, placement).makespan() + max(rest for _, _, rest in stages)


def make_model() -> MLP:
    """The MLP, the same on every rank."""
    return MLP(SIZES).initialize(seed=0)


def make_pipeline(comm: Communicator) -> Strategy:
    """The pipeline strategy, with the stage of this rank."""
    return Strategy(make_model(), DeviceMesh(comm, pp=comm.size), schedule=SCHEDULE)


def make_step(strategy: Strategy, batches: list[Microbatch]) -> Callable[[], float]:
    """A training step, which returns the loss."""
    optimizer = SGD(strategy.slabs, lr=RATE)

    def step() -> float:
        optimizer.zero_grad()
        loss = strategy.forward_backward(batches)
        strategy.step(optimizer)
        return loss
    return step


def torch_step(torch: ModuleType, comm: Communicator, batches: list[Microbatch]
               ) -> Callable[[], float]:
    """PyTorch's training step with the same stages."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    from ..baselines.torch_models import TorchMLP, copy_state
    cut, = make_pipeline(comm).stages.cuts
    layers = list(copy_state(make_model().state_dict(), TorchMLP(SIZES)))
    first = 2 * cut                     # of its modules, which are layers and ReLUs in turn
    mine = torch.nn.Sequential(*layers[first:] if comm.rank else layers[:first])
    stage = PipelineStage(mine, comm.rank, comm.size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, NUM_MICROBATCHES, loss_fn=torch.nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(mine.parameters(), lr=RATE)
    x, labels = (torch.tensor(np.concatenate(arrays))
                 for arrays in zip(*[batch[:2] for batch in batches]))

    def step() -> float:
        optimizer.zero_grad()
        losses: list = []
        if comm.rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=labels, losses=losses)
        optimizer.step()
        return sum(loss.item() for loss in losses) / NUM_MICROBATCHES
    return step


def _total(comm: Communicator, loss: float) -> float:
    """The loss on every rank: PyTorch's is only on the last one, minipar's on all."""
    return float(all_reduce(comm, np.array([loss], np.float64), "max")[0])
