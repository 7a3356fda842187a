"""Run the study: train in one process per core, then measure in one process."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from functools import partial
from itertools import product
from pathlib import Path
from threading import Thread
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits

from ..environment import num_cores
from .measure import ROWS, Result, measure_all
from .subjects import Subject
from .versions import VersionBuilder, num_steps

POLL = 0.2              # seconds between two updates of the progress
Results = dict[str, dict[str, list[Result]]]        # by subject and row, one for each seed

_counter: Any = None    # steps taken, shared by all processes


def _join_in(counter: Any) -> None:
    global _counter
    _counter = counter
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the study's own process ends, even if that is killed."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _count() -> None:
    with _counter.get_lock():
        _counter.value += 1


def make_versions(subject: Subject, seed: int, folder: Path,
                  tick: Callable[[], None] = _count) -> None:
    """Train and write all versions of a subject for one seed."""
    with threadpool_limits(1):
        VersionBuilder(subject, seed, folder, tick).make()


def folder_of(work: Path, subject: Subject, seed: int) -> Path:
    """The folder of a subject's versions for one seed."""
    return work / subject.name.replace(" ", "-") / str(seed)


def run_study(subjects: Sequence[Subject], num_seeds: int, work: Path,
              console: Console) -> Results:
    """Train all versions into the folder `work`, and measure them."""
    jobs = [(subject, seed, folder_of(work, subject, seed))
            for seed, subject in product(range(num_seeds), reversed(subjects))]  # longest first
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"),
               TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, console=console, transient=True,
                  disable=not console.is_terminal) as progress:
        steps = progress.add_task("training ", total=sum(num_steps(job[0]) for job in jobs))
        rows = progress.add_task("measuring",
                                 total=len(jobs) * len({row.file for row in ROWS}))
        workers = min(num_cores(), len(jobs)) if num_seeds > 1 else 1
        if workers > 1:
            _train_apart(jobs, workers, partial(progress.update, steps))
        else:
            for job in jobs:
                make_versions(*job, tick=partial(progress.advance, steps))
        with threadpool_limits(1):
            found = {subject.name: [measure_all(subject, seed, folder_of(work, subject, seed),
                                                partial(progress.advance, rows))
                                    for seed in range(num_seeds)] for subject in subjects}
    return {name: {row.name: [of_seed[row.name] for of_seed in results] for row in ROWS}
            for name, results in found.items()}


def _train_apart(jobs: Sequence[tuple[Subject, int, Path]], workers: int,
                 show: Callable[..., None]) -> None:
    """Run all jobs in `workers` processes; call show(completed=steps) now and then."""
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    with ProcessPoolExecutor(workers, context, _join_in, (counter,)) as pool:
        waiting = {pool.submit(make_versions, *job) for job in jobs}
        try:
            while waiting:
                done, waiting = wait(waiting, POLL)
                show(completed=counter.value)
                for job in done:
                    job.result()                # raises the job's exception
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()       # they write into a folder that will be deleted
            raise
        finally:
            pool.shutdown(cancel_futures=True)
