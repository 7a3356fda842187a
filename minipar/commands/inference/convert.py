"""`minipar convert SOURCE DESTINATION`: from Hugging Face's files to a checkpoint, or back.

    minipar convert ~/gpt2 out/gpt2          config.json, model.safetensors, vocab.json, merges.txt
    minipar convert out/gpt2 ~/mine          a checkpoint: the same files, for transformers

SOURCE says which: a folder with a config.json, or a checkpoint.  GPT-2 and Llama.  A model without
GPT-2's tokenizer reads and writes tokens as numbers.
"""

import argparse
from pathlib import Path

import numpy as np

from ...interop import load_pretrained, save_pretrained
from ...launcher import UsageError
from ...nn import GPT
from ...train.model_checkpoints import open_model, save_model
from ...train.tasks import LanguageTask
from ...units import in_bytes
from ..tables import Column, Output, Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("source", type=Path, metavar="SOURCE",
                        help="a folder with config.json and model.safetensors; or a checkpoint")
    parser.add_argument("destination", type=Path, metavar="DESTINATION",
                        help="the folder to write")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32",
                        help="of the checkpoint's weights (float32)")


def main(options: argparse.Namespace, output: Output) -> None:
    """Convert, and list the weights.  Raises UsageError."""
    try:
        if (options.source / "config.json").exists():
            model, paths = to_checkpoint(options)
        elif options.source.is_dir() and not any(options.source.glob("*.npz")):
            raise UsageError(f"{options.source} has neither a config.json nor a checkpoint: give "
                             "the folder of a model")
        else:
            model, paths = to_folder(options)
    except (ValueError, OSError) as error:
        raise UsageError.of(error) from error
    output.table(table_of(model), show=False)
    num_bytes = sum(p.data.nbytes for p in model.parameters())
    output.text(f"{model.num_parameters():,} parameters, {in_bytes(num_bytes)}, in "
                f"{len(model.h)} blocks", *[f"wrote {path}" for path in paths])


def to_checkpoint(options: argparse.Namespace) -> tuple[GPT, list[Path]]:
    """Write a checkpoint of a model in Hugging Face's files."""
    model, vocabulary = load_pretrained(options.source, np.dtype(options.dtype))
    return model, [save_model(options.destination, model, "docs", vocabulary)]


def to_folder(options: argparse.Namespace) -> tuple[GPT, list[Path]]:
    """Write Hugging Face's files of a checkpoint."""
    _, task, model = open_model(options.source)
    if not isinstance(task, LanguageTask) or not isinstance(model, GPT):
        raise UsageError(f"{options.source}: only a GPT has a layout of Hugging Face")
    return model, save_pretrained(options.destination, model, task.vocabulary)


def table_of(model: GPT) -> Table:
    """The weights."""
    table = Table.of("weights", "name", Column("shape", is_text=True), Column("size", "B"))
    for name, parameter in model.named_parameters():
        table.add(name, " × ".join(map(str, parameter.shape)), parameter.data.nbytes)
    return table
