"""`minipar study`: what every way of compression costs and saves, in one table for each model.

    minipar study --out out/study           about ten minutes of CPU
    minipar study --quick --out out/study   seconds: the same on tiny models, only to try it out

    train ─▶ dense ─┬▶ train --resume                  the reference for pruned versions
                    ├▶ prune --steps                   pruned 50, 80, 90 %; 2:4; structured
                    ├▶ quantize                        int8 … mxfp4; after pruning, too
                    └▶ distill                         and the same student without a teacher

Every version is the checkpoint of one command, and the study prints that command.  The checkpoints
stay in the folder, so a study that was interrupted goes on with the next command.  The folder also
gets study.md and study.png.
"""

import io
import shlex
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.box import SIMPLE_HEAD
from threadpoolctl import threadpool_limits

from ... import viz
from ...atomic_files import write_text
from ...checkpoint_file import NEWEST, Checkpoint
from ...compress import FLOAT_GRIDS
from ...compress.footprint import ModelVersion, measure
from ...compress.pruning.shrink import without_masks
from ...compress.pruning.sparse import SparseLinear, replace_linear_layers
from ...compress.pruning.two_of_four import TwoOfFourLinear
from ...nn import Module
from ...train.checkpoints.models import open_model
from ...train.option import CommandOptions, option, out_folder
from ...train.tasks import Task
from ...units import in_bytes, time_unit
from ..main import main as run_command
from ..tables import Column, Output, Shown, Table

SEEDS = 5


class Subject(NamedTuple):
    """A model to compress: the options of `minipar train` for it, and for a smaller student."""

    name: str
    quality: str
    sizes: str
    student: str
    steps: int
    more: int               # steps after pruning
    repeats: int            # timed forwards; the fastest counts

    @property
    def more_is_better(self) -> bool:
        """True if a larger quality is better."""
        return self.quality == ACCURACY


ACCURACY, BITS = "accuracy, %", "bits per character"
FULL = (
    Subject("digits MLP", ACCURACY, "--data digits --hidden 128,64 --batch 64", "--hidden 32,16",
            300, 150, 60),
    Subject("text GPT", BITS, "--data docs --layers 2 --heads 4 --width 64 --context 64 "
            "--batch 16", "--layers 1 --heads 2 --width 32", 1200, 300, 15))
QUICK = (
    Subject("tiny digits MLP", ACCURACY, "--data digits --hidden 64,32 --batch 32", "--hidden 8",
            40, 10, 3),
    Subject("tiny text GPT", BITS, "--data docs --layers 1 --heads 2 --width 32 --context 8 "
            "--batch 4", "--layers 1 --heads 2 --width 8", 10, 4, 3))

TUNED = "dense, more steps"
# The command that makes each version.  {dense} and {pruned} are checkpoints, other fields are of
# the subject.
COMMANDS = {
    "dense": "train {sizes} --steps {steps} --seed {seed}",
    TUNED: "train --resume {dense} --steps {all_steps}",
    "pruned 50 %": "prune {dense} --amount 0.5 --steps {more}",
    "pruned 80 %": "prune {dense} --amount 0.8 --steps {more}",
    "pruned 90 %": "prune {dense} --amount 0.9 --steps {more}",
    "2:4": "prune {dense} --method 2:4 --steps {more}",
    "structured 50 %": "prune {dense} --method structured --amount 0.5 --steps {more}",
    "int8": "quantize {dense} --bits 8",
    "int8, inputs too": "quantize {dense} --bits 8 --activations",
    "int4": "quantize {dense} --bits 4",
    "int4, GPTQ": "quantize {dense} --bits 4 --method gptq",
    **{name: f"quantize {{dense}} --format {name}" for name in FLOAT_GRIDS},
    "pruned 80 % + int8": "quantize {pruned} --bits 8",
    "small, from labels": "train {sizes} {student} --steps {steps} --seed {seed}",
    "small, distilled": "distill {dense} {student} --temperature 2 --alpha 0.5 --steps {steps} "
                        "--seed {seed}",
}
TRAINED_ON = ("pruned", "2:4", "structured")            # versions that are compared with TUNED
RUN_SPARSE = {"pruned 90 %": SparseLinear, "2:4": TwoOfFourLinear}


class Result(NamedTuple):
    """The measurements of a version, for one seed."""

    quality: float
    num_bytes: float        # of the model's arrays in the checkpoint
    flops: float            # of the forward of one sample
    seconds: float          # of the forward of one batch


Results = dict[str, np.ndarray]     # by version: (seeds, the fields of Result)


def main(options: "Options", output: Output) -> int:
    """Make all versions, measure them, report; return 0, or the status of a command that fails."""
    num_seeds = (1 if options.quick else SEEDS) if options.seeds is None else options.seeds
    subjects, out, results = QUICK if options.quick else FULL, options.out, {}
    for subject in subjects:
        folders = [out / subject.name / str(seed) for seed in range(num_seeds)]
        for seed, folder in enumerate(folders):
            if status := make_versions(subject, seed, folder, output):
                return status
        of_seeds = [measure_versions(subject, folder) for folder in folders]
        results[subject] = {name: np.array([found[name] for found in of_seeds])
                            for name in of_seeds[0]}
    how = f"{num_seeds} seeds, mean ± standard deviation" if num_seeds > 1 else "one seed"
    tables = [study_table(subject, found) for subject, found in results.items()]
    for table in tables:
        output.table(table, SIMPLE_HEAD)
    output.text(how)
    output.file(out / "study.png", viz.draw_pareto, [panel(*item) for item in results.items()],
                f"Quality against the model's bytes in its file ({how})")
    output.file(out / "study.md", write_text, "\n".join([
        f"{how.capitalize()}.\n", *map(markdown, tables), "![Quality against bytes](study.png)\n"]))
    return 0


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    quick: bool = option(False, "tiny models, hardly trained: to see whether it works")
    seeds: int | None = option(None, "repeat everything with N seeds", least=1,
                               default_text=f"{SEEDS}; quick: 1")
    out: Path = out_folder("folder of checkpoints, table and picture", Path("out/study"))


def make_versions(subject: Subject, seed: int, folder: Path, output: Output) -> int:
    """Run the commands whose checkpoints are not in `folder`, until one fails.

    Returns 0, or the exit status of the failure.
    """
    fields = {"dense": shlex.quote(str(folder / "dense")), "seed": seed,
              "pruned": shlex.quote(str(folder / "pruned 80 %")),
              "all_steps": subject.steps + subject.more, **subject._asdict()}
    for name, command in COMMANDS.items():
        if (folder / name / NEWEST).exists():
            continue
        line = f"{command.format(**fields)} --out {shlex.quote(str(folder / name))}"
        output.text(f"minipar {line}")
        with redirect_stdout(io.StringIO()):
            status = run_command(shlex.split(line))
        if status:
            return status
    return 0


def measure_versions(subject: Subject, folder: Path) -> dict[str, Result]:
    """Measure all versions of one seed; the timed forwards run on one thread, interleaved."""
    opened: dict[str, tuple[Checkpoint, Task, Module]] = {
        name: open_model(folder / name) for name in COMMANDS}
    task, quality, versions = opened["dense"][1], {}, {}
    with threadpool_limits(1):
        for name, (saved, _, model) in opened.items():
            score = task.score(model)
            quality[name] = score.bits if score.accuracy is None else 100 * score.accuracy
            num_bytes = sum(array.nbytes for array in saved.model.values())
            versions[name] = ModelVersion(num_bytes, model)
            if name in RUN_SPARSE:
                sparse = replace_linear_layers(without_masks(model), RUN_SPARSE[name])
                quality[f"{name}, run sparse"] = quality[name]
                versions[f"{name}, run sparse"] = ModelVersion(num_bytes, sparse)
        inputs = task.batches.batch(0)[0]
        costs = measure(versions, inputs, subject.repeats)
    return {name: Result(quality[name], cost.num_bytes, cost.flops / len(inputs), cost.seconds)
            for name, cost in costs.items()}


def study_table(subject: Subject, results: Results) -> Table:
    """All versions of a model.  Ratios are to the dense one.

    A gain is a difference of qualities, positive if better: the mean over the seeds ± its standard
    error.  It is relative to the dense model; for pruned versions to TUNED, which has more steps.
    Versions of one seed come from one dense model, so differences are taken seed by seed.
    """
    table = Table.of(subject.name, "version", subject.quality, "gain", Column("bytes", "B"),
                     "ratio", "FLOPs/sample", "ratio", Column("time/batch", "s"), "ratio")
    dense, digits = np.mean(results["dense"], axis=0), 1 if subject.more_is_better else 3
    unit, scale = time_unit(dense[3])
    for name, of_seeds in results.items():
        mean, ratio = np.mean(of_seeds, axis=0), np.mean(of_seeds, axis=0) / dense
        reference = results[TUNED if name.startswith(TRAINED_ON) else "dense"]
        gains = (of_seeds - reference)[:, 0] * (1 if subject.more_is_better else -1)
        table.add(name, shown(of_seeds[:, 0], digits), None if name == "dense" else
                  shown(gains, digits, deviation(gains) / np.sqrt(len(gains)), "+"),
                  Shown(mean[1], in_bytes(mean[1])), Shown(ratio[1], f"{ratio[1]:.2f}"),
                  Shown(mean[2], f"{mean[2]:,.0f}"), Shown(ratio[2], f"{ratio[2]:.2f}"),
                  Shown(mean[3], f"{shown(scale * of_seeds[:, 3], 2).text} {unit}"),
                  Shown(ratio[3], f"{ratio[3]:.2f}"))
    return table


def deviation(values: np.ndarray) -> float:
    """The standard deviation; 0 for a single seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def shown(values: np.ndarray, digits: int, spread: float | None = None, sign: str = "") -> Shown:
    """The mean ± `spread`, by default the standard deviation; a single seed has no spread."""
    text = f"{np.mean(values):{sign}.{digits}f}"
    if len(values) > 1:
        text += f" ± {deviation(values) if spread is None else spread:.{digits}f}"
    return Shown(np.mean(values), text)


def markdown(table: Table) -> str:
    """The table in Markdown, below its title."""
    rows = [[cell.text if isinstance(cell, Shown) else cell or "" for cell in row]
            for row in table.rows]
    lines = [[column.name for column in table.columns],
             ["---", *["---:"] * (len(table.columns) - 1)], *rows]
    return f"**{table.title}**\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def panel(subject: Subject, results: Results) -> "viz.ParetoPanel":
    """The points of a subject's picture, one for each checkpoint."""
    points = {name: (results[name][:, 1].mean(), results[name][:, 0].mean(),
                     deviation(results[name][:, 0])) for name in COMMANDS}
    return viz.ParetoPanel(subject.name, subject.quality, points, subject.more_is_better)
