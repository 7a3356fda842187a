"""The description in a checkpoint: every name, and the values that it may have.

    MODEL        needed to run the model    data, vocabulary, sizes …
    RUN          needed to train it on      step, losses, optimizer …
    config       the configuration of the run, in the tables of a TOML file (config_file.py)
    compression  what was done to the model, step by step; compress/load.py has each kind's rules

Sizes are also compared with the arrays of the file, before a model of that size is made.
"""

import re
from typing import Any

from ...checkpoint_file import Checkpoint, CheckpointError
from ...checkpoint_file.description_rules import (
    FLAG,
    REAL,
    RECORD,
    TEXT,
    Rule,
    fault,
    number,
    one_of,
    whole,
)
from ...compress.distillation.feature_loss import DISTANCES
from ...compress.pruning.prune import METHODS, SCOPES
from ...data import vocabulary_of
from ...launcher import UsageError
from ...nn import MLP, Activation, Module
from ...nn.gpt import MLPS, NORMS
from ...nn.moe.config import BALANCE_GROUPS, CAPACITY_GROUPS, DROPS, SCORES
from ...optim.registry import OPTIMIZERS
from ..check import check_value
from ..config import OPTIONS, DataConfig, ModelConfig, RecordedData, TrainConfig
from ..config_file import from_tables, to_tables
from ..setup.gpt_sizes import options_of_gpt, sizes_of_gpt
from ..setup.mlp_sizes import activation_of, sizes_of_mlp

OLDER = {"decay_all": True}     # the first edition had no such option, and let all weights decay
SURROGATE = re.compile("[\ud800-\udfff]")         # half a character, which no text has

EXPERTS = {"num_experts": whole(1), "top_k": whole(1), "every": whole(1), "width?": whole(1),
           "num_shared": whole(0), "scores": one_of(*SCORES), "renormalize?": FLAG,
           "scale": number(0), "num_groups": whole(1), "top_groups": whole(1),
           "capacity_factor?": number(0), "drop": one_of(*DROPS),
           "capacity_per": one_of(*CAPACITY_GROUPS), "balance_loss": number(0),
           "balance_per": one_of(*BALANCE_GROUPS), "z_loss": number(0), "bias_rate": number(0)}
GPT_SIZES = {"vocab_size": whole(1), "context": whole(1), "num_layers": whole(1),
             "num_heads": whole(1), "width": whole(1), "num_kv_heads?": whole(1),
             "dropout": number(0, 1), "tied": FLAG, "head_width?": whole(1),
             "mlp_width?": whole(1), "norm": one_of(*NORMS), "norm_epsilon": number(0),
             "mlp": one_of(*MLPS), "rope?": TEXT, "bias": FLAG,
             "experts?": EXPERTS}
# What descriptions of the first edition lack, and `upgrade` adds.
ADDED_LATER = ("norm", "norm_epsilon", "mlp", "rope", "bias")
MLP_SIZES = {"sizes": [whole(1)], "activation?": one_of(*Activation.KINDS)}
VOCABULARY = Rule("characters in order, each once, or a tokenizer", lambda value: isinstance(
    value, dict) or isinstance(value, str)
    and value == "".join(sorted(set(value))) != "" and not SURROGATE.search(value))
MODEL = {"data": TEXT, "data_path?": TEXT, "data_seed?": whole(0), "vocabulary?": VOCABULARY,
         "model": RECORD, "dtype": one_of("float32", "float64"), "seed": whole(0),
         "config": RECORD, "compression?": [{"kind": TEXT}]}
DISTILLATION = {"teacher": TEXT, "temperature": number(0), "alpha": number(0, 1),
                "match_hidden": number(0), "match_attention": number(0),
                "distance": one_of(*DISTANCES)}
PRUNING = {"method": one_of(*METHODS), "amount": number(0, 1), "scope": one_of(*SCOPES),
           "gradual": FLAG, "first_step": whole(0), "last_step": whole(0), "lr": number(0),
           "initial": number(0, 1)}
RUN = {"step": whole(0), "samples?": whole(0), "losses": [REAL],
       "optimizer?": one_of(*OPTIMIZERS), "updates?": whole(0),
       "scaler?": {"scale": number(1e-30, 1e30), "num_good": whole(0), "num_skipped": whole(0)},
       "distillation?": DISTILLATION, "pruning?": PRUNING}


def check_description(found: dict[str, Any]) -> None:
    """Raise CheckpointError unless a description is sound."""
    refuse(fault(found, MODEL) or fault(found["model"], sizes_of_kind(found), "model"))
    described, size = found.get("vocabulary") or "", found["model"].get("vocab_size", 0)
    try:
        num_tokens = len(vocabulary_of(described)) if described else 0
    except ValueError as error:
        refuse(str(error))
    if num_tokens != size:
        refuse(f"model.vocab_size is {size}, but the vocabulary has {num_tokens} "
               f"{'characters' if isinstance(described, str) else 'tokens'}")
    config_of(found)


def check_run(found: dict[str, Any]) -> None:
    """Raise CheckpointError unless the description also has all that training needs to go on."""
    refuse(fault(found, RUN))


def check_counts(saved: Checkpoint) -> None:
    """Raise CheckpointError for more layers or experts than the arrays of the file can have."""
    model = saved.description["model"]
    num_layers = model.get("num_layers", len(model.get("sizes", [])) - 1)
    if num_layers > len(saved.model):
        refuse(f"the model has {num_layers:,} layers, but the file {len(saved.model):,} arrays")
    num_experts = (model.get("experts") or {}).get("num_experts", 0)
    num_bytes = sum(array.nbytes for array in saved.model.values())
    if num_experts > num_bytes:
        refuse(f"a block has {num_experts:,} experts, but all arrays {num_bytes:,} bytes")


def refuse(wrong: str) -> None:
    """Raise CheckpointError with the text `wrong`, unless it is empty."""
    if wrong:
        raise CheckpointError(f"its description is not what `minipar train` or save_model() writes "
                              f"({wrong}): give another checkpoint")


def sizes_of_kind(description: dict[str, Any]) -> dict[str, Any]:
    """The rules for the sizes of the model that is described, an MLP or a GPT."""
    return MLP_SIZES if description["data"] == "digits" else GPT_SIZES


def upgrade(description: dict[str, Any]) -> None:
    """Add to the description of an older edition what it lacks.

    The first edition wrote flat "options" instead of a "config", and knew only GPT-2's kind of GPT.
    """
    model, options = description.get("model"), description.get("options")
    if isinstance(model, dict) and "sizes" not in model:
        missing = [name for name in ADDED_LATER if model.get(name) is None]
        model.update({name: OPTIONS[name].default for name in missing})
    if "config" in description or not isinstance(options, dict):
        return
    config: dict[str, dict[str, Any]] = {}
    for name, value in (OLDER | description.pop("options")).items():
        if name in OPTIONS and OPTIONS[name].option.saved:
            config.setdefault(OPTIONS[name].section, {})[OPTIONS[name].name] = value
    description["config"] = config


def config_of(description: dict[str, Any], **changes: Any) -> TrainConfig:
    """The configuration of a checkpoint's training, with `changes`, by the names of flags.

    The sizes come from the entry "model".  Raises CheckpointError if the entry "config" has an
    unknown name or a wrong value; the other entries must be sound.
    """
    try:
        told = from_tables(description["config"])
        for key, value in told.items():
            check_value(OPTIONS[key], value)
    except (ValueError, UsageError) as error:
        refuse(str(error))
    recorded = RecordedData(
        description.get("vocabulary"), description.get("data_seed", description["seed"]),
        description["data"] if description.get("data_path") else None, description.get("data_path"))
    known = TrainConfig(data=DataConfig(recorded=recorded)).updated(**told)
    return known.updated(**sizes_as_options(description["model"]), data=description["data"],
                         dtype=description["dtype"], seed=description["seed"]).updated(**changes)


def describe_model(model: Module) -> dict[str, Any]:
    """The sizes of a model, as a checkpoint has them.

    Raises ValueError for an MLP whose layers have different activations between them.
    """
    return sizes_of_mlp(list(model.sizes), activation_of(model)) if isinstance(model, MLP) \
        else sizes_of_gpt(model.config)


def sizes_as_options(sizes: dict[str, Any]) -> dict[str, Any]:
    """The options of `minipar train` that make a model of these sizes."""
    if "sizes" in sizes:
        return {"hidden": ",".join(map(str, sizes["sizes"][1:-1])),
                "activation": sizes.get("activation") or ModelConfig.activation}
    return options_of_gpt(sizes)


def describe_config(config: TrainConfig) -> dict[str, Any]:
    """The entries "dtype", "seed" and "config" of a description, which `config_of` reads."""
    return {"dtype": config.precision.dtype, "seed": config.run.seed, "config": to_tables(config)}
