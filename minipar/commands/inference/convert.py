"""`minipar convert SOURCE DESTINATION`: from Hugging Face's files to a checkpoint, or back.

    minipar convert ~/gpt2 out/gpt2          config.json, model.safetensors, vocab.json, merges.txt
    minipar convert out/gpt2 ~/mine          a checkpoint: the same files, for transformers
    minipar convert out/gpt2 ~/mine --dtype bfloat16

It converts GPT-2 and Llama.  The kind of SOURCE decides the direction; if --to names the other one,
convert refuses.  It also converts a tokenizer of bytes, such as GPT-2's, or of characters.  With
any other tokenizer the model reads and writes tokens as numbers, and a line says why.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...checkpoint_file import NEWEST
from ...compress.load import compression_steps
from ...compress.pruning.serialization import KIND as PRUNED
from ...data import ByteBPE, CharacterVocabulary
from ...interop import open_pretrained, open_safetensors, save_pretrained
from ...interop.safetensors import refuse_pickle
from ...interop.tokenizer import read_tokenizer
from ...launcher import UsageError, errors_as_usage
from ...nn import GPT
from ...train.checkpoints.models import open_model, refuse_same_folder, save_model
from ...train.option import REQUIRED, CommandOptions, option
from ...train.tasks import LanguageTask
from ...units import in_bytes
from ..tables import Column, Output, Shown, Table

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def main(options: "Options", output: Output) -> None:
    """Convert, and list the weights.  Raises UsageError."""
    source, destination = options.source, options.destination
    with errors_as_usage():
        to = direction(source)
    if options.to not in (None, to):
        raise UsageError(f"--to {options.to}: {source} is "
                         f"{'a checkpoint' if to == 'hf' else 'a folder of Hugging Face'}, "
                         f"which can only be converted to {to}: leave --to out")
    refuse_same_folder(destination, source)
    with errors_as_usage():
        written, note, paths = (to_checkpoint if to == "minipar" else to_folder)(options)
    output.table(table_of(written))
    output.text(*filter(None, [note]), *[f"wrote {path}" for path in paths])


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of the command."""

    source: Path = option(REQUIRED, "a folder with config.json and model.safetensors; or a "
                          "checkpoint", metavar="SOURCE", is_positional=True)
    destination: Path = option(REQUIRED, "the folder to write", metavar="DESTINATION",
                               is_positional=True)
    to: str | None = option(None, "refuse a SOURCE that is no checkpoint (hf), or is one (minipar)",
                            choices=("hf", "minipar"))
    dtype: str | None = option(None, "of the weights; a checkpoint's are float32 or float64",
                               choices=tuple(DTYPES),
                               default_text="as in SOURCE, 16 bits as float32")
    data: str = option("docs", "the text that the checkpoint names: later commands evaluate "
                       "and train on it, unless they are given another", metavar="docs|PATH")


class Written(NamedTuple):
    """An array that was written."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int


def direction(source: Path) -> str:
    """"hf" or "minipar": the format to which the source can be converted.  Raises UsageError."""
    refuse_pickle(source)
    if not source.exists():
        raise UsageError(f"no {source}: give the folder of a model, or a checkpoint")
    if not source.is_dir():
        return "hf" if source.suffix == ".npz" else "minipar"
    if (source / NEWEST).exists():
        return "hf"
    if not (source / "config.json").exists():
        for file in sorted(source.iterdir()):
            refuse_pickle(file)
        raise UsageError(f"{source} has neither a config.json nor a checkpoint: give the folder of "
                         "a model")
    return "minipar"


def to_checkpoint(options: Options) -> tuple[list[Written], str, list[Path]]:
    """Convert Hugging Face's files to a checkpoint; return the arrays, a note, and the paths."""
    if options.dtype not in (None, "float32", "float64"):
        raise UsageError(f"--dtype {options.dtype}: a checkpoint's weights are float32 or float64")
    source = open_pretrained(options.source)
    vocabulary, note = read_tokenizer(options.source, source.sizes.vocab_size)
    state = source.parameters(options.dtype)
    path = save_model(options.destination, GPT(source.sizes), options.data, vocabulary, state)
    return [Written(name, array.shape, array.dtype.name, array.nbytes)
            for name, array in state.items()], note, [path]


def to_folder(options: Options) -> tuple[list[Written], str, list[Path]]:
    """Convert a checkpoint to Hugging Face's files; return the arrays, a note, and the paths."""
    checkpoint, task, model = open_model(options.source)
    if not isinstance(task, LanguageTask) or not isinstance(model, GPT):
        raise UsageError(f"{options.source}: only a GPT has a layout of Hugging Face")
    kinds = {step["kind"] for step in compression_steps(checkpoint)} - {PRUNED}
    if kinds:
        raise UsageError(f"{options.source}: this model was {', '.join(sorted(kinds))}, and its "
                         "codes have no such layout: convert the checkpoint that it was made from")
    paths = save_pretrained(options.destination, model, task.vocabulary,
                            dtype=options.dtype and DTYPES[options.dtype])
    names = {code: name for name, code in DTYPES.items()}
    entries = open_safetensors(options.destination).entries
    written = [Written(name, entry.shape, names[entry.dtype], entry.end - entry.begin)
               for name, entry in entries.items()]
    has_files = isinstance(task.vocabulary, ByteBPE | CharacterVocabulary)
    return written, ("" if has_files else "no tokenizer: this model reads and writes tokens as "
                     "numbers"), paths


def table_of(written: list[Written]) -> Table:
    """The arrays, and their sum."""
    table = Table.of("arrays", "name", Column("shape", is_text=True), Column("dtype", is_text=True),
                     "numbers", Column("size", "B"))
    for name, shape, dtype, num_bytes in written:
        table.add(name, Shown([*shape], " × ".join(map(str, shape))), dtype, math.prod(shape),
                  Shown(num_bytes, in_bytes(num_bytes)))
    table.sections.append(len(written) - 1)
    total = sum(each.num_bytes for each in written)
    table.add("all", None, None, sum(math.prod(each.shape) for each in written),
              Shown(total, in_bytes(total)))
    return table
