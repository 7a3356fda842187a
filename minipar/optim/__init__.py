"""Optimizers over flat slabs, learning-rate schedules, clipping."""

from .adam import Adam, AdamW
from .clip import clip_grad_norm, grad_norm
from .groups import NO_DECAY_FOR_VECTORS, Group
from .optimizer import Optimizer
from .schedule import warmup_cosine
from .sgd import SGD

__all__ = ["NO_DECAY_FOR_VECTORS", "SGD", "Adam", "AdamW", "Group", "Optimizer", "clip_grad_norm",
           "grad_norm", "warmup_cosine"]
