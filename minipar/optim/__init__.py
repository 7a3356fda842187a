"""Optimizers over flat slabs, learning-rate schedules, clipping."""

from .adam import Adam, AdamW
from .clip import clip_grad_norm, grad_norm
from .optimizer import Optimizer
from .scaling import LossScaler
from .schedule import warmup_cosine
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "LossScaler", "Optimizer", "clip_grad_norm", "grad_norm",
           "warmup_cosine"]
