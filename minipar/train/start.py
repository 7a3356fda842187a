"""The start of a run: makes the objects that the loop uses, from the configuration.

    task ─▶ model ─▶ precision ─▶ values ─▶ rematerialization ─▶ strategy ─▶ optimizer ─▶ TrainState

The loop (`loop.py`) is given these objects and makes none of them.
"""

from functools import partial
from typing import TYPE_CHECKING

from ..comm import Communicator
from ..launcher import errors_as_usage
from ..optim import NO_DECAY_FOR_VECTORS
from ..optim.registry import make_optimizer
from .checkpoints.models import load_checkpoint
from .checkpoints.resume import resume, save
from .config import TrainConfig
from .loop import SaveAt, TrainState
from .setup.device import device_array
from .setup.precision import apply_precision, make_scaler
from .setup.rank_memory import RankMemory, memory_errors_as_usage
from .setup.remat import rematerialize_model
from .setup.starting_point import StartingPoint
from .setup.strategy import build_strategy, num_microbatches

if TYPE_CHECKING:
    from .tasks import Task


def start_run(comm: Communicator, config: TrainConfig, task: "Task",
              start: StartingPoint | None = None) -> TrainState:
    """Collective.  The run of `config` on this rank, from `start`.

    By default it starts from the checkpoint of --resume, or without one from the seed.

    Raises UsageError for a model, a strategy or a checkpoint that does not fit.
    """
    memory, chosen = RankMemory(config, comm), config.optimizer
    if start is None:
        start = StartingPoint() if config.run.resume is None else load_checkpoint(config, task)
    like = device_array(config, comm)
    refused = f"--resume {config.run.resume}: " if start.checkpoint else \
        "this model cannot be made here, choose smaller sizes: "
    with memory_errors_as_usage(memory.ledger), errors_as_usage(refused), memory.recording(), \
            memory.offloading_new_arrays():
        model = task.build()
        apply_precision(config, task.trained_part(model))
        start.fill(model, config, like)
        remat_policy = rematerialize_model(config, model, comm)
        with errors_as_usage(f"--strategy {config.parallel.strategy}: "):
            strategy = build_strategy(config, model, comm)
        optimizer = make_optimizer(chosen.name, strategy.slabs, chosen.lr, chosen.weight_decay,
                                   chosen.momentum,
                                   () if chosen.decay_all else (NO_DECAY_FOR_VECTORS,))
        if strategy.steps_within_batch:
            strategy.optimizer = optimizer
        state = TrainState(config, task, strategy, optimizer, memory, num_microbatches(config),
                           like, make_scaler(config), start.compression, remat_policy)
        if start.checkpoint is not None:
            resume(state, start.checkpoint)
    memory.prepare_offload(model)
    return state


def saving(comm: Communicator, state: TrainState) -> SaveAt | None:
    """The function that writes the checkpoints of a run into --out; None without --out."""
    return None if state.config.run.out is None else partial(save, comm, state)
