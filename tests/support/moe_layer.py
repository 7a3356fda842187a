"""A layer with experts, its inputs, and the context of a training step."""

import numpy as np

from minipar.nn import GPTConfig, MoE, MoEConfig
from minipar.nn.gpt import FeedForward
from minipar.nn.step_context import training_step

WIDTH, HIDDEN = 6, 5


def layer(**changes) -> MoE:
    """A layer whose router tells experts apart, without losses unless they are asked for."""
    config = MoEConfig(**{"num_experts": 4, "balance_loss": 0.0, **changes})
    made = MoE(config, FeedForward(GPTConfig(9, width=WIDTH, num_heads=1, mlp_width=HIDDEN)))
    made.initialize(3, np.float64)
    rng = np.random.default_rng(0)
    for parameter in made.parameters():
        parameter.data[...] = rng.standard_normal(parameter.shape)
    return made


def draw(*shape, seed=1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def training(num_samples: int, step: int = 0):
    """The context of a batch in which every sequence has the same share."""
    return training_step(0, step, range(num_samples),
                         shares=np.full(num_samples, 1 / num_samples))
