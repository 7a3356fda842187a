"""Optimizers over flat slabs, parameter groups, learning-rate schedules, clipping.

    optimizer.py      the loop over a slab, block by block      sgd.py, adam.py   the updates
    groups.py         weight decay and learning rate by rule    lr_schedule.py    the rate by step
    clip.py           the norm over all ranks, and clipping       registry.py       all by name
    adamw_8bit.py     AdamW with states of 8 bits                 moment_codes.py   their codes
    whole_tensors/    Muon, LAMB and LARS, which need whole tensors, or their norms, where ranks
                      have pieces

The constructor's arguments are PyTorch's: lr, momentum, betas, weight_decay.
"""

from .adam import Adam, AdamW
from .clip import clip_grad_norm, grad_norm
from .groups import NO_DECAY_FOR_VECTORS, ParameterGroup
from .lr_schedule import warmup_cosine
from .optimizer import Optimizer
from .sgd import SGD

__all__ = ["NO_DECAY_FOR_VECTORS", "SGD", "Adam", "AdamW", "Optimizer", "ParameterGroup",
           "clip_grad_norm", "grad_norm", "warmup_cosine"]
