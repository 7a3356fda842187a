"""`minipar quantize CHECKPOINT`: the same model in integers of 2 to 8 bits, or in small floats.

    minipar quantize out/gpt --bits 8 --out out/gpt-int8
    minipar quantize out/gpt --bits 4 --per group:64 --method gptq --out out/gpt-int4
    minipar quantize out/gpt --bits 3 --method gptq --order activation --out out/gpt-int3
    minipar quantize out/gpt --bits 8 --activations --skip lm_head --out out/gpt-w8a8
    minipar quantize out/gpt --format mxfp4 --out out/gpt-mxfp4

The result is a checkpoint that `minipar evaluate` runs.
"""

import argparse
import math
from pathlib import Path

import numpy as np

from ... import checkpoint as files
from ...compress import FLOAT_GRIDS, FloatGrid, Granularity, IntGrid, pack_quantized
from ...compress.load import compression_steps
from ...compress.quantization.gptq import ORDERS
from ...compress.quantization.observers import NAMES
from ...compress.quantization.post_training import METHODS, quantize
from ...launcher import UsageError
from ...train.checkpoints.models import check_numbers, open_model
from ...train.tasks import Score, Task, try_score
from ...units import in_bytes
from ..tables import Column, Output, Shown, Table

GROUPS = (32, 64, 128)
CALIBRATION_BATCHES, DAMPING = 4, 0.01
# Entries about the training: a quantized checkpoint, which cannot be trained, leaves them out.
OF_TRAINING = ("losses", "optimizer", "step", "samples", "distillation", "pruning")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT",
                        help="a checkpoint of `minipar train`, or its folder")
    parser.add_argument("--bits", type=int, choices=range(2, 9), metavar="2…8",
                        help="bits of the integers (8); embeddings have 8")
    parser.add_argument("--format", choices=FLOAT_GRIDS,
                        help="floats instead of integers: of 8 bits (fp8), or of 8 or 4 bits, 32 "
                             "of which share a power of two (mxfp8, mxfp4)")
    parser.add_argument("--per", metavar="tensor|channel|group:N",
                        help="numbers that share a scale: a whole weight (tensor), the weights of "
                             "an output (channel, default), or N of them: 32, 64 or 128")
    parser.add_argument("--asymmetric", action="store_true",
                        help="fit grids to min … max, with a zero point, not to ± the largest")
    parser.add_argument("--method", choices=METHODS, default="nearest",
                        help="round each weight by itself (nearest), or let the others compensate "
                             "its error (gptq)")
    parser.add_argument("--damping", type=float, metavar="D",
                        help="with gptq: added to the Hessian's diagonal, as a share of its "
                             f"mean ({DAMPING:g})")
    parser.add_argument("--order", choices=ORDERS,
                        help="with gptq: round inputs one after the other (index), or those with "
                             "the largest activations first (activation)")
    parser.add_argument("--samples", type=int, metavar="N",
                        help="samples of the data for gptq and --activations "
                             f"({CALIBRATION_BATCHES} batches)")
    parser.add_argument("--skip", action="append", default=[], metavar="NAME",
                        help="leave these layers as they are: lm_head, 'h.0.*'; may be given "
                             "several times")
    parser.add_argument("--observer", choices=NAMES, default="minmax",
                        help="how ranges are chosen (minmax): percentile and mse clip outliers")
    parser.add_argument("--activations", action="store_true",
                        help="8-bit inputs of linear layers too, and products of integers")
    parser.add_argument("--data", metavar="docs|PATH",
                        help="another text to calibrate with, or the new place of the one before")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR",
                        help="folder of the quantized checkpoint")


def main(options: argparse.Namespace, output: Output) -> None:
    """Quantize, write, compare.  Raises UsageError."""
    try:
        _run(options, output)
    except (ValueError, OSError) as error:
        raise UsageError.of(error) from error


def grid_of(options: argparse.Namespace) -> IntGrid | FloatGrid:
    """The grid to which weights are rounded.  Raises ValueError for contradicting options."""
    if options.format is None:
        return IntGrid(options.bits or 8, "asymmetric" if options.asymmetric else "symmetric")
    grid = FLOAT_GRIDS[options.format]
    for name, given, of in (("bits", options.bits, "integers"),
                            ("asymmetric", options.asymmetric, "integers"),
                            ("activations", options.activations, "integers"),
                            ("per", grid.per and options.per, "scales of float32")):
        if given:
            raise ValueError(f"--{name} is for {of}, and does not go with --format "
                             f"{options.format}: leave one of them out")
    return grid


def check_options(options: argparse.Namespace) -> None:
    """Raise ValueError for what cannot be, or would do nothing."""
    is_gptq = options.method == "gptq"
    for name, given, goes, what in (
            ("damping", options.damping is not None, is_gptq, "--method gptq"),
            ("order", options.order is not None, is_gptq, "--method gptq"),
            ("samples", options.samples is not None, is_gptq or options.activations,
             "--method gptq or --activations")):
        if given and not goes:
            raise ValueError(f"--{name} does nothing without {what}: give that too, or leave it "
                             "out")
    if options.damping is not None and not 0 <= options.damping < math.inf:
        raise ValueError(f"--damping {options.damping:g}: give a number >= 0, for example 0.01")
    if options.samples is not None and options.samples < 1:
        raise ValueError(f"--samples {options.samples}: give a positive whole number")


def samples(task: Task, options: argparse.Namespace) -> list[np.ndarray]:
    """Batches of inputs to calibrate with, as many samples as are asked for; [] if none is needed.
    """
    if options.method != "gptq" and not options.activations:
        return []
    batches, left = [], options.samples or CALIBRATION_BATCHES * task.config.data.batch
    while left > 0:
        batches.append(task.batches.batch(len(batches))[0][:left])
        left -= len(batches[-1])
    return batches


def _run(options: argparse.Namespace, output: Output) -> None:
    check_options(options)
    grid, per = grid_of(options), Granularity.parse(options.per or "channel")
    if per.size and per.size not in GROUPS:
        raise ValueError(f"--per group:{per.size}: groups of {', '.join(map(str, GROUPS))} inputs "
                         "are possible")
    checkpoint, task, model = open_model(options.checkpoint, data=options.data)
    check_numbers(options.checkpoint, checkpoint.model)
    source = options.checkpoint if options.checkpoint.is_dir() else options.checkpoint.parent
    if options.out.resolve() == source.resolve():
        raise ValueError(f"--out {options.out} is where the checkpoint is, which would be "
                         "replaced: give another folder")
    plain_bytes = sum(array.nbytes for array in checkpoint.model.values())
    before = try_score(task, model)
    calibration = samples(task, options)
    quantize(model, grid, per, options.method, calibration, options.activations, options.observer,
             DAMPING if options.damping is None else options.damping, options.order or "index",
             options.skip)
    arrays, step = pack_quantized(model)
    step |= {"method": options.method, "observer": options.observer}
    if options.order:
        step["order"] = options.order
    description = {key: value for key, value in checkpoint.description.items()
                   if key not in OF_TRAINING}
    description["compression"] = [*compression_steps(checkpoint), step]
    path = files.save(options.out, files.Checkpoint(arrays, {}, description))
    after = try_score(task, model)
    output.table(sizes_table(
        [("the model's arrays", plain_bytes, sum(array.nbytes for array in arrays.values())),
         ("file, which held the optimizer's states" if checkpoint.optimizer else "file",
          files.file_size(options.checkpoint), files.file_size(path))]))
    output.table(loss_table(before[0], after[0]), show=False)
    output.text(f"before: {before[1]}", f"after:  {after[1]}", f"checkpoint: {path}")


def sizes_table(sizes: list[tuple[str, int, int]]) -> Table:
    """Bytes before and after."""
    table = Table.of("", "size", Column("before", "B"), Column("after", "B"), "ratio")
    for what, before, after in sizes:
        table.add(what, Shown(before, in_bytes(before)), Shown(after, in_bytes(after)),
                  Shown(before / after, f"÷ {before / after:.2f}"))
    return table


def loss_table(before: Score | None, after: Score | None) -> Table:
    """The losses before and after, where the text is there; for scripts."""
    table = Table.of("score", "figure", "before", "after")
    if before is not None and after is not None:
        table.add("loss in nats", before.nats, after.nats)
        table.add("accuracy", before.accuracy, after.accuracy)
    return table
