"""`minipar train --precision fp16`: what it can be told, its mistakes, and what it means."""

import argparse

from ...compress.distillation.distill import Distillation
from ...compress.messages.block_codec import BlockCodec
from ...compress.messages.quantized_collectives import QuantizedWire
from ...launcher import UsageError
from ...nn import Module
from ...number_formats import BFLOAT16, FLOAT16, Format
from ...parallel.low_precision import gather_in, reduce_in, send_in
from ...parallel.strategy import Strategy
from ...parallel.wire import Wire
from ...precision import PRECISIONS, LossScaler, precision_preset, set_precision
from ...precision.loss_scaler import LARGEST

WIRES = {"bf16": BFLOAT16, "fp16": FLOAT16}
INTEGERS = {"int8": 8, "int4": 4}           # bits of codes, 256 of which share a scale
SCALED = ("fp16", "fp8")        # whose gradients are too small without
ALONE = {"precision": "fp32", "loss_scale": None, "reduce_dtype": "fp32",
         "gather_dtype": "fp32"}


def add_precision_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say in how many bits numbers are kept."""
    group = parser.add_argument_group("precision")
    group.add_argument("--precision", choices=PRECISIONS, default="fp32",
                       help="what activations, gradients and weights in use are rounded to; fp8: "
                            "factors of products, the rest bf16 (fp32)")
    group.add_argument("--loss-scale", metavar="dynamic|none|N",
                       help="what the loss is multiplied by in backward (dynamic with fp16 and "
                            "fp8, none with bf16)")
    group.add_argument("--reduce-dtype", choices=("fp32", *WIRES, *INTEGERS), default="fp32",
                       help="in which data-parallel ranks sum gradients (fp32); int8, int4: sent "
                            "as integers with a scale, summed in float32, and what rounding loses "
                            "is sent in the next step")
    group.add_argument("--gather-dtype", choices=("fp32", *WIRES, *INTEGERS), default="fp32",
                       help="in which fsdp gathers weights, for every use (fp32)")


def check_precision(options: argparse.Namespace) -> None:
    """Refuse what does not go together.  Raises UsageError."""
    for name in ("precision", "reduce_dtype", "gather_dtype"):
        value = getattr(options, name)
        if value != "fp32" and options.dtype == "float64":
            raise UsageError(f"--{name.replace('_', '-')} {value} rounds float32 numbers: leave "
                             "--dtype float64 out")
    if options.reduce_dtype != "fp32" and options.strategy == "dp":
        raise UsageError("--reduce-dtype goes with sums over ranks, but with --strategy dp rank 0 "
                         "adds gradients up by itself: choose ddp")
    if options.reduce_dtype in INTEGERS and options.strategy == "zero3":
        raise UsageError(f"--reduce-dtype {options.reduce_dtype} goes with gradients that are "
                         "summed once a step, but zero3 sums at every use of a weight: choose fsdp")
    if options.gather_dtype != "fp32" and options.strategy != "fsdp":
        raise UsageError("--gather-dtype goes with --strategy fsdp, which gathers weights for a "
                         f"use, not with {options.strategy}: leave it out, or choose fsdp")
    if options.loss_scale is None:
        return
    if options.precision == "fp32":
        raise UsageError("--loss-scale goes with numbers that underflow: add --precision fp16, or "
                         "leave it out")
    if options.loss_scale not in ("dynamic", "none"):
        try:
            good = 1 / LARGEST <= float(options.loss_scale) <= LARGEST
        except ValueError:
            good = False
        if not good:
            raise UsageError("--loss-scale takes dynamic, none or a number from 1e-30 to 1e30, "
                             f"for example 1024, not {options.loss_scale!r}")


def narrow_model(options: argparse.Namespace, model: Module) -> Module:
    """The model, or a student in it, computing in the precision of the options."""
    if options.precision != "fp32":
        inner = model.student if isinstance(model, Distillation) else model
        set_precision(inner, precision_preset(options.precision, inner))
    return model


def narrow_messages(options: argparse.Namespace, strategy: Strategy) -> None:
    """Let activations travel in the model's precision, gradients and weights as they are told."""
    if options.precision != "fp32":
        send_in(strategy, WIRES["fp16" if options.precision == "fp16" else "bf16"])
    if options.reduce_dtype != "fp32":
        reduce_in(strategy, _travelling(options.reduce_dtype))
    if options.gather_dtype != "fp32":
        gather_in(strategy, _travelling(options.gather_dtype))


def _travelling(name: str) -> Format | Wire:
    return WIRES[name] if name in WIRES else QuantizedWire(BlockCodec(INTEGERS[name]))


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
        words.append(f"gradients {_how(options.reduce_dtype)} {options.reduce_dtype}")
    if options.gather_dtype != "fp32":
        words.append(f"weights gathered as {options.gather_dtype}")
    return ", ".join(words)


def _how(name: str) -> str:
    return "sent as" if name in INTEGERS else "summed in"


def of_score(precision: str) -> str:
    """What a score says of the precision of the training; empty where both are float32."""
    return "" if precision == "fp32" else \
        f" (computed in float32 from the float32 masters, not in {precision})"


def outcome(scaler: LossScaler | None) -> str:
    """What the summary says of the scale."""
    if scaler is None:
        return ""
    return f"; loss scale {scaler.scale:g}, {scaler.num_skipped} steps skipped"
