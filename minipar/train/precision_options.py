"""`minipar train --precision fp16`: what it can be told, its mistakes, and what it means."""

import argparse
import math

from ..formats import BFLOAT16, FLOAT16
from ..launch import UsageError
from ..memory.precision import NAMES, preset, set_precision
from ..nn import Module
from ..optim import LossScaler
from ..parallel.narrow import reduce_in, send_in
from ..parallel.strategy import Strategy

WIRES = {"bf16": BFLOAT16, "fp16": FLOAT16}
SCALED = ("fp16", "fp8")        # whose gradients are too small without
ALONE = {"precision": "fp32", "loss_scale": None, "reduce_dtype": "fp32"}


def add_precision_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say in how many bits numbers are kept."""
    group = parser.add_argument_group("precision")
    group.add_argument("--precision", choices=NAMES, default="fp32",
                       help="what activations, gradients and weights in use are rounded to; fp8: "
                            "factors of products, the rest bf16 (fp32)")
    group.add_argument("--loss-scale", metavar="dynamic|none|N",
                       help="what the loss is multiplied by in backward (dynamic with fp16 and "
                            "fp8, none with bf16)")
    group.add_argument("--reduce-dtype", choices=("fp32", *WIRES), default="fp32",
                       help="in which data-parallel ranks sum gradients (fp32)")


def check_precision(options: argparse.Namespace) -> None:
    """Refuse what does not go together.  Raises UsageError."""
    for name in ("precision", "reduce_dtype"):
        value = getattr(options, name)
        if value != "fp32" and options.dtype == "float64":
            raise UsageError(f"--{name.replace('_', '-')} {value} rounds float32 numbers: leave "
                             "--dtype float64 out")
    if options.reduce_dtype != "fp32" and options.strategy == "dp":
        raise UsageError("--reduce-dtype goes with sums over ranks, but with --strategy dp rank 0 "
                         "adds gradients up by itself: choose ddp")
    if options.loss_scale is None:
        return
    if options.precision == "fp32":
        raise UsageError("--loss-scale goes with numbers that underflow: add --precision fp16, or "
                         "leave it out")
    if options.loss_scale not in ("dynamic", "none"):
        try:
            good = 0 < float(options.loss_scale) < math.inf
        except ValueError:
            good = False
        if not good:
            raise UsageError("--loss-scale takes dynamic, none or a number > 0, for example 1024, "
                             f"not {options.loss_scale!r}")


def narrow_model(options: argparse.Namespace, model: Module) -> Module:
    """The model, computing in the precision of the options."""
    if options.precision != "fp32":
        set_precision(model, preset(options.precision, model))
    return model


def narrow_messages(options: argparse.Namespace, strategy: Strategy) -> None:
    """Let activations travel in the model's precision, gradients in --reduce-dtype."""
    if options.precision != "fp32":
        send_in(strategy, WIRES["fp16" if options.precision == "fp16" else "bf16"])
    if options.reduce_dtype != "fp32":
        reduce_in(strategy, WIRES[options.reduce_dtype])


def make_scaler(options: argparse.Namespace) -> LossScaler | None:
    """The loss scaler that the options mean; None for none."""
    scale = options.loss_scale or ("dynamic" if options.precision in SCALED else "none")
    if scale == "none":
        return None
    return LossScaler() if scale == "dynamic" else LossScaler(float(scale), growth=1, backoff=1)


def described(options: argparse.Namespace) -> str:
    """In a few words, for a headline."""
    words = [options.dtype if options.precision == "fp32" else
             f"{options.precision} with float32 masters"]
    if options.reduce_dtype != "fp32":
        words.append(f"gradients summed in {options.reduce_dtype}")
    return ", ".join(words)


def outcome(scaler: LossScaler | None) -> str:
    """What the summary says of the scale."""
    if scaler is None:
        return ""
    return f"; loss scale {scaler.scale:g}, {scaler.num_skipped} steps skipped"
