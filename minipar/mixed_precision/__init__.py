"""Mixed-precision training: a format for each module, float32 master weights, loss scaling.

    policy.py             which formats a module computes in; presets for whole models
    set_precision.py      rounds what a module's operations return and save
    loss_scaler.py        the scale of the loss; a step that overflows on one rank is skipped on all

The formats themselves, their codes and their rounding, are in `minipar/number_formats`.
"""

from .loss_scaler import LossScaler, unscale
from .policy import BF16, FP8, FP16, FP32, PRECISIONS, Precision, precision_preset
from .set_precision import set_precision

__all__ = ["BF16", "FP8", "FP16", "FP32", "PRECISIONS", "LossScaler", "Precision",
           "precision_preset", "set_precision", "unscale"]
