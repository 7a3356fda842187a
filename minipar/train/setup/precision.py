"""The precision of a run: `minipar train --precision fp16 --reduce-dtype int8`.

    --precision        the model computes in this format, the optimizer in float32
    --loss-scale       factor of the loss, against gradients that underflow
    --reduce-dtype     the format of gradients in messages, or a method that compresses them
    --gather-dtype     the format of weights in the messages of zero3 and fsdp

Without these options everything is in --dtype, float32 by default.
"""

from ...launcher import UsageError, errors_as_usage
from ...mixed_precision import PRECISIONS, LossScaler, precision_preset, set_precision
from ...mixed_precision.loss_scaler import LARGEST
from ...nn import Module
from ...number_formats import Format
from ...parallel.data.trained_apart import TrainedApart
from ...parallel.registry import entry_of, strategies_with
from ...parallel.wire_formats.registry import WIRES, arguments_of, tensor_wire
from ...parallel.wire_formats.wire import Wire
from ...parallel.zero.zero1 import ZeRO1
from ..config import OPTIONS, TrainConfig
from ..option import one_of

# A wire, the format of messages, takes those options of [messages] that it has arguments for.
MESSAGE_OPTIONS = [key for key, field in OPTIONS.items() if field.section == "messages"]
FULL_PRECISION = {"precision": "fp32", "loss_scale": None, "reduce_dtype": "fp32",
                  "gather_dtype": "fp32"}


def check_precision(config: TrainConfig) -> None:
    """Refuse precision options that do not go together.  Raises UsageError."""
    gathering, strategy = strategies_with("gather_wire"), config.parallel.strategy
    if config.precision.gather_dtype != "fp32" and \
            "gather_wire" not in entry_of(strategy).options:
        raise UsageError(f"--gather-dtype needs --strategy {one_of(gathering)}, not {strategy}: "
                         "leave it out, or choose a strategy that takes it")
    if config.precision.loss_scale not in (None, "dynamic", "none"):
        try:
            good = 1 / LARGEST <= float(config.precision.loss_scale) <= LARGEST
        except ValueError:
            good = False
        if not good:
            raise UsageError("--loss-scale takes dynamic, none or a number from 1e-30 to 1e30, "
                             f"for example 1024, not {config.precision.loss_scale!r}")


def check_messages(config: TrainConfig) -> None:
    """Refuse options of wires that do not go together.  Raises UsageError."""
    name, strategy = config.precision.reduce_dtype, config.parallel.strategy
    for key in MESSAGE_OPTIONS:
        takers = [wire for wire in WIRES if key in arguments_of(wire)]
        if config.get(key) is not None and name not in takers:
            raise UsageError(f"{OPTIONS[key].flag} goes with --reduce-dtype {one_of(takers)}, not "
                             f"{name}: leave it out, or choose one of them")
    if tensor_wire(config.precision.gather_dtype):
        formats = one_of(wire for wire in WIRES if not tensor_wire(wire))
        raise UsageError(f"--gather-dtype {config.precision.gather_dtype} sends gradients, not "
                         f"weights: choose {formats}")
    wire = tensor_wire(name)
    if wire and issubclass(entry_of(strategy).kind, ZeRO1 | TrainedApart):
        raise UsageError(f"--reduce-dtype {name} sums whole gradients, and --strategy {strategy} "
                         "does not: choose ddp, or another format")
    optimizer = config.optimizer
    if wire and wire.has_momentum and (optimizer.name != "sgd" or optimizer.momentum
                                       or optimizer.clip):
        raise UsageError(f"--reduce-dtype {name} has momentum before the sum, and gives the step's "
                         "direction: add --optimizer sgd --set optimizer.momentum=0 --clip 0")


def make_wire(config: TrainConfig, name: str) -> Wire:
    """The wire called `name`, with the options of [messages] that it takes.  Raises UsageError."""
    given = {key: config.get(key) for key in MESSAGE_OPTIONS if key in arguments_of(name)}
    with errors_as_usage("--set messages: "):
        return WIRES[name](**{key: value for key, value in given.items() if value is not None})


def apply_precision(config: TrainConfig, model: Module) -> Module:
    """Let the model compute in the configured precision; return it."""
    if config.precision.compute != "fp32":
        set_precision(model, precision_preset(config.precision.compute, model))
    return model


def wire_options(config: TrainConfig) -> dict[str, Wire]:
    """The arguments `wire` and `gather_wire` of make_strategy: the formats of its messages."""
    chosen = {"wire": config.precision.reduce_dtype, "gather_wire": config.precision.gather_dtype}
    return {name: make_wire(config, dtype) for name, dtype in chosen.items() if dtype != "fp32"}


def activation_format(config: TrainConfig) -> Format | None:
    """The format of activations in the messages of pp and tp: that of the model's outputs."""
    return PRECISIONS[config.precision.compute].outputs


def make_scaler(config: TrainConfig) -> LossScaler | None:
    """The loss scaler; None if the loss is not scaled."""
    scale = config.precision.loss_scale \
        or ("dynamic" if PRECISIONS[config.precision.compute].needs_loss_scale else "none")
    if scale == "none":
        return None
    return LossScaler() if scale == "dynamic" else LossScaler(float(scale), growth=1, backoff=1)


def describe_precision(config: TrainConfig) -> str:
    """The precision in a few words, for a headline."""
    words = [config.precision.dtype if config.precision.compute == "fp32" else
             f"{config.precision.compute} with float32 masters"]
    if config.precision.reduce_dtype != "fp32":
        wire = WIRES[config.precision.reduce_dtype]()
        words.append(f"gradients {wire.verb} {config.precision.reduce_dtype}")
    if config.precision.gather_dtype != "fp32":
        words.append(f"weights gathered as {config.precision.gather_dtype}")
    return ", ".join(words)


def score_note(precision: str) -> str:
    """A note beside a score whose model was trained in a low precision; "" for fp32."""
    return "" if precision == "fp32" else \
        f" (computed in float32 from the float32 masters, not in {precision})"


def describe_loss_scaling(scaler: LossScaler | None) -> str:
    """The final loss scale and the skipped steps, for the summary; "" without a scaler."""
    if scaler is None:
        return ""
    return f"; loss scale {scaler.scale:g}, {scaler.num_skipped} steps skipped"
