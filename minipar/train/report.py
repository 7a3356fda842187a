"""What a training run shows: a progress bar, pictures, a sample, how far it is from one rank."""

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
from .setup.memory import described_memory
from .setup.precision import described as precision_of
from .setup.strategy import described


def terminal() -> Console | None:
    """The terminal that somebody sits at, perhaps behind mpirun; None if there is none."""
    console = Console()
    if console.is_terminal:
        return console
    path = launcher_terminal() if launched() else None
    return Console(file=open(path, "w"), force_terminal=True) if path else None


class ProgressBar:
    """Loss, tokens (or images) a second and the time that is left; on rank 0 only.

    Where nobody sits at a terminal, a line now and then instead.
    """

    def __init__(self, comm: Communicator, run: TrainState, console: Console):
        self.run, self.console, batches = run, console, run.task.batches
        self.per_step = batches.batch_size * getattr(batches, "context", 1)
        self.unit = "tokens" if hasattr(batches, "context") else "images"
        self.is_first, screen = comm.rank == 0, terminal() if comm.rank == 0 else None
        self.prints_lines = self.is_first and screen is None
        self.bar = Progress(TextColumn("step"), MofNCompleteColumn(), BarColumn(),
                            TextColumn("{task.description}"), TimeRemainingColumn(),
                            TextColumn("left"), console=screen, transient=True,
                            disable=screen is None)
        self.started, self.done = time.perf_counter(), 0

    def __enter__(self) -> "ProgressBar":
        if self.is_first:
            self.bar.start()
        self.task = self.bar.add_task("", total=self.run.options.steps,
                                      completed=self.run.first_step)
        return self

    def __exit__(self, *exception: object) -> None:
        self.bar.stop()

    def __call__(self, step: int, loss: float) -> None:
        """Called after each step."""
        self.done += 1
        seconds = (time.perf_counter() - self.started) / self.done
        total = self.run.options.steps
        text = f"loss {loss:.3f}  {self.per_step / seconds:,.0f} {self.unit}/s"
        self.bar.update(self.task, advance=1, description=text)
        every = max(1, total // 5)
        if self.prints_lines and ((step + 1) % every == 0 or step + 1 == total):
            self.console.print(f"step {step + 1}/{total}  {text}  "
                               f"{seconds * (total - step - 1):.0f} s left", highlight=False)


def introduce(run: TrainState, world: str, console: Console) -> None:
    """What is trained, on what, where; rank 0 only."""
    options = run.options
    description, model = run.task.describe()["model"], run.task.build()     # not this rank's part
    sizes = ", ".join(f"{name} {value}" for name, value in description.items()
                      if value is not None)
    console.print(f"minipar train: {type(model).__name__} of "
                  f"{model.num_parameters():,} parameters ({sizes}) on {options.data}, "
                  f"{world}, {described(options)}{described_memory(options)}, "
                  f"{precision_of(options)}{', on a GPU' * (options.device == 'cuda')}",
                  highlight=False, markup=False)
    if options.resume is not None:
        console.print(f"resumed from {options.resume} after {run.first_step} steps",
                      highlight=False, markup=False)


def draw(run: TrainState, world: str, out: Path) -> list[Path]:
    """The loss curve; one step's timeline, this rank's memory, its pipeline; rank 0 only."""
    steps = np.arange(1, len(run.losses) + 1)
    name = f"{type(run.task.build()).__name__} on {run.options.data}"
    pictures = [viz.draw_loss(steps, run.losses, out / "loss.png", title=f"{name}, {world}",
                          reference=run.task.reference_loss(), per=run.task.target)]
    if run.trace is not None and (run.trace.spans or run.trace.messages):
        pictures.append(viz.draw_timeline(run.trace, out / "timeline.png", arrows=False,
                                      title=f"One training step: {name}, {world}"))
    step = viz.MemoryStep("", run.memory.ledger.history, *run.traced,
                          phases=viz.phase_starts(run.trace, 0))
    pictures.append(viz.draw_memory_timeline([step], out / "memory.png",
                                f"Memory of rank 0: {name}, {world}\n{described(run.options)}"
                                f"{described_memory(run.options)}"))
    if run.pipeline is not None:
        groups = run.strategy.comm.size // run.pipeline.num_ranks
        pictures.append(viz.draw_pipeline(run.pipeline, out / "pipeline.png", (
            f"One step of {name}, {described(run.options)}"
            + f"\nthe first of {groups} pipelines, its ranks counted along pp" * (groups > 1))))
    return pictures
