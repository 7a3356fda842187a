"""The headline, the progress bar and the pictures of a training run."""

import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from .. import viz
from ..comm import Communicator
from ..environment import launched, launcher_terminal
from .loop import TrainState
from .setup.mesh import is_hybrid
from .setup.precision import describe_precision
from .setup.rank_memory import describe_memory
from .setup.strategy import describe_strategy


def terminal() -> Console | None:
    """The user's terminal, also where mpirun captures the output; None if there is none."""
    console = Console()
    if console.is_terminal:
        return console
    path = launcher_terminal() if launched() else None
    return Console(file=open(path, "w"), force_terminal=True) if path else None


class ProgressBar:
    """Loss, tokens (or images) a second and the time that is left; on rank 0 only.

    Without a terminal it prints at most nine lines instead; on a quiet console, nothing.
    """

    def __init__(self, comm: Communicator, state: TrainState, console: Console):
        self.state, self.console, task = state, console, state.task
        _ = task.batches                # fails now if the data are gone
        self.per_step = state.config.data.batch * task.targets_per_sample
        self.unit = "images" if task.target == "image" else "tokens"
        self.is_first = comm.rank == 0
        screen = terminal() if self.is_first and not console.quiet else None
        self.prints_lines = self.is_first and screen is None
        self.bar = Progress(TextColumn("step"), MofNCompleteColumn(), BarColumn(),
                            TextColumn("{task.description}"), TimeRemainingColumn(),
                            TextColumn("left"), console=screen, transient=True,
                            disable=screen is None)
        self.started, self.done = time.perf_counter(), 0

    def __enter__(self) -> "ProgressBar":
        if self.is_first:
            self.bar.start()
        self.task = self.bar.add_task("", total=self.state.config.run.steps,
                                      completed=self.state.first_step)
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def __call__(self, step: int, loss: float) -> None:
        """Show that `step` is done."""
        self.done += 1
        seconds = (time.perf_counter() - self.started) / self.done
        total = self.state.config.run.steps
        text = f"loss {loss:.3f}  {self.per_step / seconds:,.0f} {self.unit}/s"
        self.bar.update(self.task, advance=1, description=text)
        every = max(1, total // 5)
        if self.prints_lines and ((step + 1) % every == 0 or step + 1 == total):
            self.console.print(f"step {step + 1}/{total}  {text}  "
                               f"{seconds * (total - step - 1):.0f} s left", highlight=False)


def print_headline(state: TrainState, world: str, console: Console) -> None:
    """Print the model, its data, the ranks and the strategy, and what was resumed; rank 0 only."""
    config = state.config
    description = state.task.describe()["model"]
    model = state.task.build()                  # whole, not this rank's part
    sizes = ", ".join(f"{name} {value}" for name, value in description.items()
                      if value is not None and name != "experts")
    if experts := description.get("experts"):
        sizes += f", {experts['num_experts']} experts, {experts['top_k']} for each token"
    console.print(f"minipar train: {type(model).__name__} of "
                  f"{model.num_parameters():,} parameters ({sizes}) on {config.data.source}, "
                  f"{world}, {describe_strategy(config)}{describe_memory(config)}, "
                  f"{describe_precision(config)}{', on a GPU' * (config.run.device == 'cuda')}",
                  highlight=False, markup=False)
    if config.run.resume is not None:
        console.print(f"resumed from {config.run.resume} after {state.first_step} steps",
                      highlight=False, markup=False)


def expert_loads(state: TrainState) -> dict[str, np.ndarray]:
    """How often each step chose each expert, (steps, experts), by layer; {} without experts."""
    names = list(state.loads[0]) if state.loads else []
    return {name: np.array([loads[name].load for loads in state.loads]) for name in names}


def describe_loads(state: TrainState) -> str:
    """The use of experts in the last step, for the summary; "" without experts."""
    layers = state.loads[-1] if state.loads else {}
    if not layers:
        return ""
    busiest = max(load.load.max() / load.load.mean() for load in layers.values())
    dropped = sum(load.num_dropped for load in layers.values())
    num_choices = sum(int(load.load.sum()) for load in layers.values())
    return (f"experts in the last step: the busiest has {busiest:.2f} times the mean; "
            f"{dropped:,} of {num_choices:,} choices dropped")


def draw_pictures(state: TrainState, world: str, out: Path) -> list[Path]:
    """Draw the loss, one step's timeline, memory and pipeline, the experts' use; rank 0 only.

    Pictures without data are left out.  Returns the paths of those that are drawn.
    """
    steps = np.arange(1, len(state.losses) + 1)
    name = f"{type(state.task.build()).__name__} on {state.config.data.source}"
    pictures = [viz.draw_loss(out / "loss.png", steps, state.losses, title=f"{name}, {world}",
                          reference=state.task.reference_loss(), per=state.task.target)]
    if state.trace is not None and (state.trace.spans or state.trace.messages):
        pictures.append(viz.draw_timeline(
            out / "timeline.png", state.trace, title=f"One training step: {name}, "
            f"{world}", mesh=state.strategy.mesh if is_hybrid(state.config) else None))
    step = viz.MemoryStep("", state.memory.ledger.history, *state.traced_at,
                      phases=viz.phase_starts(state.trace, 0))
    pictures.append(viz.draw_memory_timeline(out / "memory.png", [step],
                                f"Memory of rank 0: {name}, {world}\n"
                                f"{describe_strategy(state.config)}{describe_memory(state.config)}"))
    if layers := expert_loads(state):
        pictures.append(viz.draw_expert_loads(out / "experts.png", layers, state.first_step,
                                              title=f"Use of experts: {name}, {world}"))
    if state.pipeline_timeline is not None:
        world_ranks = state.pipeline_timeline.world_ranks or []
        groups = state.strategy.comm.size // len(world_ranks)
        pictures.append(viz.draw_pipeline(out / "pipeline.png", state.pipeline_timeline, (
            f"One step of {name}, {describe_strategy(state.config)}"
            + f"\nthe first of {groups} pipelines along pp: ranks "
              f"{', '.join(map(str, world_ranks))} of {state.strategy.comm.size}" * (groups > 1))))
    return pictures
