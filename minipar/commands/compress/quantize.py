"""`minipar quantize CHECKPOINT`: the same model in integers of 2 to 8 bits, or in small floats.

    minipar quantize out/gpt --bits 8 --out out/gpt-int8
    minipar quantize out/gpt --bits 4 --per group:64 --method gptq --out out/gpt-int4
    minipar quantize out/gpt --bits 3 --method gptq --order activation --out out/gpt-int3
    minipar quantize out/gpt --bits 8 --activations --skip lm_head --out out/gpt-w8a8
    minipar quantize out/gpt --format mxfp4 --out out/gpt-mxfp4

The result is a checkpoint that `minipar evaluate` runs.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ... import checkpoint_file as files
from ...compress import FLOAT_GRIDS, FloatGrid, Granularity, IntGrid, pack_quantized
from ...compress.load import compression_steps
from ...compress.quantization.gptq import ORDERS
from ...compress.quantization.observers import NAMES
from ...compress.quantization.post_training import METHODS, quantize
from ...launcher import UsageError, errors_as_usage
from ...train.checkpoints.models import check_numbers, open_model, refuse_same_folder
from ...train.option import Beside, CommandOptions, checkpoint, option, other_text, out_folder
from ...train.tasks import Score, Task, try_score
from ...units import in_bytes
from ..tables import Column, Output, Shown, Table

GROUPS = (32, 64, 128)
CALIBRATION_BATCHES = 4
# Entries about the training: a quantized checkpoint, which cannot be trained, leaves them out.
OF_TRAINING = ("losses", "optimizer", "step", "samples", "distillation", "pruning")


def main(options: "Options", output: Output) -> None:
    """Quantize, write, compare.  Raises UsageError."""
    check_options(options)
    saved, task, model = open_model(options.checkpoint, data=options.data)
    check_numbers(options.checkpoint, saved.model)
    refuse_same_folder(options.out, options.checkpoint)
    plain_bytes = sum(array.nbytes for array in saved.model.values())
    before = try_score(task, model)
    calibration = samples(task, options)
    with errors_as_usage():
        quantize(model, options.grid, options.granularity, options.method, calibration,
                 options.activations, options.observer, options.damping, options.order,
                 options.skip)
    arrays, step = pack_quantized(model)
    step |= {"method": options.method, "observer": options.observer}
    if options.gives("order"):
        step["order"] = options.order
    description = {key: value for key, value in saved.description.items()
                   if key not in OF_TRAINING}
    description["compression"] = [*compression_steps(saved), step]
    path = files.save(options.out, files.Checkpoint(arrays, {}, description))
    after = try_score(task, model)
    output.table(sizes_table(
        [("the model's arrays", plain_bytes, sum(array.nbytes for array in arrays.values())),
         ("file, which held the optimizer's states" if saved.optimizer else "file",
          files.file_size(options.checkpoint), files.file_size(path))]))
    output.table(loss_table(before[0], after[0]), show=False)
    output.text(f"before: {before[1]}", f"after:  {after[1]}", f"checkpoint: {path}")


OF_INTEGERS = Beside("format", "", "is for integers")
OF_GPTQ = Beside("method", "nearest", "is of GPTQ")


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    checkpoint: Path = checkpoint("a checkpoint of `minipar train`, or its folder")
    bits: int = option(8, "bits of the integers; embeddings have 8", least=2, most=8,
                       metavar="2…8", without=(OF_INTEGERS,))
    format: str | None = option(
        None, "floats instead of integers: of 8 bits (fp8), or of 8 or 4 bits, 32 of which share a "
        "power of two (mxfp8, mxfp4)", choices="compress:FLOAT_GRIDS")
    per: str = option("channel", "numbers that share a scale: a whole weight (tensor), the weights "
                      "of an output (channel), or N of them: 32, 64 or 128",
                      metavar="tensor|channel|group:N")
    asymmetric: bool = option(False, "fit grids to min … max, with a zero point, not to ± the "
                              "largest", without=(OF_INTEGERS,))
    method: str = option("nearest", "round each weight by itself (nearest), or let the others "
                         "compensate its error (gptq)", choices=METHODS)
    damping: float = option(0.01, "with gptq: added to the Hessian's diagonal, as a share of its "
                            "mean", least=0, metavar="D", without=(OF_GPTQ,))
    order: str = option("index", "with gptq: round inputs one after the other (index), or those "
                        "with the largest activations first (activation)", choices=ORDERS,
                        without=(OF_GPTQ,))
    samples: int | None = option(None, "samples of the data for gptq and --activations", least=1,
                                 metavar="N", default_text=f"{CALIBRATION_BATCHES} batches")
    skip: tuple[str, ...] = option((), "leave these layers as they are: lm_head, 'h.0.*'; may be "
                                   "given several times", metavar="NAME")
    observer: str = option("minmax", "how ranges are chosen: percentile and mse clip outliers",
                           choices=NAMES)
    activations: bool = option(False, "8-bit inputs of linear layers too, and products of integers",
                               without=(OF_INTEGERS,))
    data: str | None = other_text("calibrate with")
    out: Path = out_folder("folder of the quantized checkpoint")

    @property
    def grid(self) -> IntGrid | FloatGrid:
        """The grid to which weights are rounded."""
        return FLOAT_GRIDS[self.format] if self.format else \
            IntGrid(self.bits, "asymmetric" if self.asymmetric else "symmetric")

    @property
    def granularity(self) -> Granularity:
        """The weights that share a scale.  Raises UsageError for another text."""
        with errors_as_usage():
            return Granularity.parse(self.per)

    @property
    def needs_samples(self) -> bool:
        """True if the quantization depends on samples of the data."""
        return self.method == "gptq" or self.activations


def check_options(options: Options) -> None:
    """Raise UsageError for options that contradict each other, or would do nothing."""
    if options.samples is not None and not options.needs_samples:
        raise UsageError("--samples does nothing without --method gptq or --activations: give that "
                         "too, or leave it out")
    if options.format and options.gives("per") and FLOAT_GRIDS[options.format].per:
        raise UsageError(f"--per is for scales of float32, which does not go with --format "
                         f"{options.format}: leave one of the two out")
    if (size := options.granularity.size) and size not in GROUPS:
        raise UsageError(f"--per group:{size}: groups of {', '.join(map(str, GROUPS))} inputs are "
                         "possible")


def samples(task: Task, options: Options) -> list[np.ndarray]:
    """Batches of inputs to calibrate with, --samples in all; [] if none is needed."""
    if not options.needs_samples:
        return []
    batches, left = [], options.samples or CALIBRATION_BATCHES * task.config.data.batch
    while left > 0:
        batches.append(task.batches.batch(len(batches))[0][:left])
        left -= len(batches[-1])
    return batches


def sizes_table(sizes: list[tuple[str, int, int]]) -> Table:
    """The bytes of the model and of its file, before and after."""
    table = Table.of("", "size", Column("before", "B"), Column("after", "B"), "ratio")
    for what, before, after in sizes:
        table.add(what, Shown(before, in_bytes(before)), Shown(after, in_bytes(after)),
                  Shown(before / after, f"÷ {before / after:.2f}"))
    return table


def loss_table(before: Score | None, after: Score | None) -> Table:
    """The scores before and after, for scripts; an empty table if the text is gone."""
    table = Table.of("score", "figure", "before", "after")
    if before is not None and after is not None:
        table.add("loss in nats", before.nats, after.nats)
        table.add("accuracy", before.accuracy, after.accuracy)
    return table
