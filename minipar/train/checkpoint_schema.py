"""The description in a checkpoint: every name, and the values that it may have.

    MODEL        needed to run it        data, vocabulary, sizes …
    RUN          needed to train it on   steps, losses, optimizer, and the options of `train`
    options      as on the command line of `minipar train`, and held to the same rules
    compression  what was done to the model, step by step; each kind has rules (compress/load.py)

Sizes are also compared with the arrays of the file, before a model of that size is made.
"""

import argparse
import re
from functools import cache
from typing import Any

from ..checkpoint import Checkpoint, CheckpointError
from ..checkpoint.rules import FLAG, REAL, RECORD, TEXT, Rule, fault, number, one_of, whole
from ..commands.parser import ArgumentParser
from ..compress.distillation.feature_loss import DISTANCES
from ..compress.pruning.prune import METHODS, SCOPES
from ..nn import MLP, Module
from .flags import OPTIMIZERS, REMEMBERED, add_arguments

OLDER = {"decay_all": True}     # options that older checkpoints do not name, and what they did
SURROGATE = re.compile("[\ud800-\udfff]")         # half a character, which no text has

GPT_SIZES = {"vocab_size": whole(1), "context": whole(1), "num_layers": whole(1),
             "num_heads": whole(1), "width": whole(1), "num_kv_heads?": whole(1),
             "dropout": number(0, 1), "tied": FLAG, "head_width?": whole(1),
             "mlp_width?": whole(1)}
MLP_SIZES = {"sizes": [whole(1)]}
VOCABULARY = Rule("characters in order, each once", lambda value: isinstance(value, str)
                  and value == "".join(sorted(set(value))) != "" and not SURROGATE.search(value))
MODEL = {"data": TEXT, "data_path?": TEXT, "data_seed?": whole(0), "vocabulary?": VOCABULARY,
         "model": RECORD, "dtype": one_of("float32", "float64"), "seed": whole(0),
         "options": RECORD, "compression?": [{"kind": TEXT}]}
DISTILLATION = {"teacher": TEXT, "temperature": number(0), "alpha": number(0, 1),
                "match_hidden": number(0), "match_attention": number(0),
                "distance": one_of(*DISTANCES)}
PRUNING = {"method": one_of(*METHODS), "amount": number(0, 1), "scope": one_of(*SCOPES),
           "gradual": FLAG, "first_step": whole(0), "last_step": whole(0), "lr": number(0),
           "initial": number(0, 1)}
RUN = {"step": whole(0), "losses": [REAL], "optimizer?": one_of(*OPTIMIZERS), "updates?": whole(0),
       "scaler?": {"scale": number(1e-30, 1e30), "num_good": whole(0), "num_skipped": whole(0)},
       "distillation?": DISTILLATION, "pruning?": PRUNING}


def check_description(found: dict[str, Any]) -> None:
    """Raise CheckpointError unless a description is sound."""
    refuse(fault(found, MODEL) or fault(found["model"], sizes_of_kind(found), "model"))
    characters, size = found.get("vocabulary") or "", found["model"].get("vocab_size", 0)
    if len(characters) != size:
        refuse(f"model.vocab_size is {size}, but the vocabulary has {len(characters)} characters")
    training_options(found)


def check_run(found: dict[str, Any]) -> None:
    """Raise CheckpointError unless it also says what training needs to go on."""
    refuse(fault(found, RUN))


def check_layers(saved: Checkpoint) -> None:
    """Raise CheckpointError for a model, not made yet, of more layers than there are arrays."""
    model = saved.description["model"]
    num_layers = model.get("num_layers", len(model.get("sizes", [])) - 1)
    if num_layers > len(saved.model):
        refuse(f"the model has {num_layers:,} layers, but the file {len(saved.model):,} arrays")


def refuse(wrong: str) -> None:
    """Raise CheckpointError if something is wrong with a description."""
    if wrong:
        raise CheckpointError(f"its description is not what `minipar train` or save_model() writes "
                              f"({wrong}): give another checkpoint")


def sizes_of_kind(description: dict[str, Any]) -> dict[str, Any]:
    """The table of the sizes of an MLP or a GPT."""
    return MLP_SIZES if description["data"] == "digits" else GPT_SIZES


class _Parser(ArgumentParser):
    def error(self, message: str) -> None:
        refuse(message)


@cache
def _parser() -> _Parser:
    parser = _Parser(allow_abbrev=False)
    add_arguments(parser)
    return parser


def training_options(description: dict[str, Any], **changes: Any) -> argparse.Namespace:
    """The options of `minipar train` that the checkpoint was trained with, and `changes`.

    Its description is sound otherwise; the sizes are those of its model.  Raises CheckpointError
    for options that `minipar train` would not take.
    """
    words = []
    for name, value in (OLDER | description["options"]).items():
        flag = f"--{name.replace('_', '-')}"
        if name in REMEMBERED and value is not None and value is not False:
            words.append(flag if value is True else f"{flag}={value}")
    options = _parser().parse_args(words)
    known = sizes_as_options(description["model"]) | {
        "data": description["data"], "dtype": description["dtype"], "seed": description["seed"],
        "vocabulary": description.get("vocabulary"),
        "data_seed": description.get("data_seed", description["seed"])}
    if description.get("data_path"):
        known["data_paths"] = {description["data"]: description["data_path"]}
    return argparse.Namespace(**{**vars(options), **known, **changes})


def describe_model(model: Module) -> dict[str, Any]:
    """The sizes of a model, as a checkpoint says them."""
    return {"sizes": list(model.sizes)} if isinstance(model, MLP) else dict(vars(model.config))


def sizes_as_options(sizes: dict[str, Any]) -> dict[str, Any]:
    """The options of `minipar train` that make a model of these sizes."""
    if "sizes" in sizes:
        return {"hidden": ",".join(map(str, sizes["sizes"][1:-1]))}
    return {"layers": sizes["num_layers"], "heads": sizes["num_heads"],
            "kv_heads": sizes.get("num_kv_heads"), "width": sizes["width"],
            "head_width": sizes.get("head_width"), "mlp_width": sizes.get("mlp_width"),
            "context": sizes["context"], "untied": not sizes["tied"], "dropout": sizes["dropout"]}
