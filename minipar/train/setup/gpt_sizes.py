"""The sizes and kinds of a GPT: from the configuration, and as a checkpoint has them."""

from typing import Any

from ...launcher import UsageError
from ...nn import GPTConfig, MoEConfig, RopeConfig
from ..config import TrainConfig


def gpt_config(config: TrainConfig, vocab_size: int) -> GPTConfig:
    """The sizes of the configured GPT.  Raises UsageError for sizes that cannot work."""
    sizes = config.model
    try:
        rope = None if sizes.rope is None else RopeConfig.parse(sizes.rope)
        experts = MoEConfig(**vars(config.experts)) if config.experts.num_experts else None
        return GPTConfig(vocab_size, sizes.context, sizes.layers, sizes.heads, sizes.width,
                         sizes.kv_heads, sizes.dropout, not sizes.untied, sizes.head_width,
                         sizes.mlp_width, sizes.norm, sizes.norm_epsilon, sizes.mlp, rope,
                         sizes.bias, experts)
    except ValueError as error:
        raise UsageError(str(error)) from error


def sizes_of_gpt(config: GPTConfig) -> dict[str, Any]:
    """The sizes and kinds of a GPT, as a checkpoint has them."""
    return {**vars(config), "rope": config.rope and str(config.rope),
            "experts": config.experts and dict(vars(config.experts))}
