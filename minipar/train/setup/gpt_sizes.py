"""The sizes and kinds of a GPT: from options to GPTConfig, to a checkpoint, and back to options.

An option of `ModelConfig` has the same name as its field in GPTConfig.  The exceptions are those in
OTHER_NAMES, those of an MLP alone, and `untied`, the contrary of `tied`.
"""

from typing import Any

from ...launcher import errors_as_usage
from ...nn import GPTConfig, MoEConfig, RopeConfig
from ..config import OPTIONS, ModelConfig, TrainConfig

OTHER_NAMES = {"layers": "num_layers", "heads": "num_heads", "kv_heads": "num_kv_heads"}
OF_AN_MLP = {"hidden", "activation"}


def gpt_config(config: TrainConfig, vocab_size: int) -> GPTConfig:
    """The sizes of the configured GPT.  Raises UsageError for sizes that cannot work."""
    sizes = {OTHER_NAMES.get(name, name): value for name, value in vars(config.model).items()
             if name not in OF_AN_MLP}
    sizes["tied"] = not sizes.pop("untied")
    with errors_as_usage():
        rope = None if sizes["rope"] is None else RopeConfig.parse(sizes["rope"])
        experts = MoEConfig(**vars(config.experts)) if config.experts.num_experts else None
        return GPTConfig(vocab_size, **sizes | {"rope": rope}, experts=experts)


def sizes_of_gpt(config: GPTConfig) -> dict[str, Any]:
    """The sizes and kinds of a GPT, as a checkpoint has them."""
    return {**vars(config), "rope": config.rope and str(config.rope),
            "experts": config.experts and dict(vars(config.experts))}


def options_of_gpt(sizes: dict[str, Any]) -> dict[str, Any]:
    """The options of `minipar train` that make a GPT of these sizes, given as in a checkpoint."""
    names = vars(ModelConfig()).keys() - OF_AN_MLP - {"untied"}
    experts = sizes.get("experts") or {}
    return {"untied": not sizes["tied"],
            **{name: sizes.get(OTHER_NAMES.get(name, name)) for name in names},
            **{key: experts.get(field.name, field.default)
               for key, field in OPTIONS.items() if field.section == "experts"}}
