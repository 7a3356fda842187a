"""Save and resume: what a run writes after a step, and what the next run loads.

    model           whole parameters, whatever the strategy
    optimizer       whole states as well
    description     configuration, step, losses, state of the loss scaler
    others          arrays that differ from rank to rank: residuals, parameters trained apart

So a run can resume with a different strategy or on a different mesh.  On a different mesh it begins
without the `others` (`rank_states.py`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...checkpoint_file import Checkpoint
from ...checkpoint_file import save as write_files
from ...comm import Communicator
from ...launcher import on_first_rank
from .rank_states import gather_rank_states, load_rank_state, rank_state, rank_state_of
from .schema import describe_config

if TYPE_CHECKING:
    from ..loop import TrainState

EditCheckpoint = Callable[[Checkpoint], Checkpoint]


def resume(state: "TrainState", saved: Checkpoint) -> None:
    """Load the step, the losses and all states of a checkpoint into a new run.

    The run already has the checkpoint's parameters (`StartingPoint.fill`).
    """
    entries = saved.description
    state.first_step, state.losses = entries["step"], list(entries["losses"])
    if entries.get("optimizer") is not None:      # save_model() writes none
        updates = entries.get("updates")
        state.optimizer.load_state_dict(saved.optimizer,
                                        state.first_step if updates is None else updates)
    scale_option = entries["config"].get("precision", {}).get("loss_scale")
    if state.scaler and entries.get("scaler") \
            and scale_option == state.config.precision.loss_scale:
        state.scaler.load_state_dict(entries["scaler"])
    if own := rank_state_of(state.strategy.mesh, saved.others):
        load_rank_state(state, own)


def save(comm: Communicator, state: "TrainState", step: int,
         edit: EditCheckpoint = lambda saved: saved, out: Path | None = None) -> None:
    """Collective.  Write the checkpoint after `step` steps to `out`, by default --out.

    `edit` may change the checkpoint before a pruned model's arrays are made compact.
    """
    model, states = state.strategy.state_dict(), state.optimizer.state_dict()
    own = gather_rank_states(state.strategy.mesh, rank_state(state))
    config = state.config

    def write() -> None:
        description = {**state.task.describe(), **describe_config(config), "step": step,
                       **state.task.progress(step), "optimizer": config.optimizer.name,
                       "updates": state.optimizer.num_steps,
                       "scaler": state.scaler and state.scaler.state_dict(),
                       "losses": state.losses}
        saved = edit(Checkpoint(model, states, description, own))
        write_files(out or config.run.out, state.compression.export(saved))
    on_first_rank(comm, write)
