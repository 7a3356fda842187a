"""The wires that a run can choose: `minipar train --reduce-dtype NAME`, `--gather-dtype NAME`."""

from collections.abc import Callable
from inspect import signature

from ..number_formats import BFLOAT16, FLOAT16
from ..parallel.low_precision_wire import LowPrecisionWire
from ..parallel.wire import UNCOMPRESSED, Wire
from .gradients.onebit_adam import OneBitAdam
from .gradients.onebit_sgd import OneBitSGD
from .gradients.powersgd import PowerSGD
from .gradients.sign_vote import SignVote
from .gradients.signs import Signs
from .gradients.tensor_wire import TensorWire
from .gradients.terngrad import TernGrad
from .gradients.threshold import Threshold
from .gradients.top_k import DGC, TopK
from .messages.block_codec import BlockCodec
from .messages.quantized_collectives import QuantizedWire

# What makes a wire, by the number format or the method.  (256 integer codes share a scale.)
WIRES: dict[str, Callable[..., Wire]] = {
    "fp32": lambda: UNCOMPRESSED,
    "bf16": lambda: LowPrecisionWire(BFLOAT16), "fp16": lambda: LowPrecisionWire(FLOAT16),
    "int8": lambda: QuantizedWire(BlockCodec(8)), "int4": lambda: QuantizedWire(BlockCodec(4)),
    "powersgd": PowerSGD, "top_k": TopK, "dgc": DGC, "signs": Signs, "onebit_sgd": OneBitSGD,
    "onebit_adam": OneBitAdam, "sign_vote": SignVote, "terngrad": TernGrad,
    "threshold": Threshold}


def tensor_wire(name: str) -> type[TensorWire] | None:
    """The class of a wire that sends few numbers or bits; None for a number format."""
    wire = WIRES[name]
    return wire if isinstance(wire, type) and issubclass(wire, TensorWire) else None


def arguments_of(name: str) -> set[str]:
    """The names of a wire's options."""
    return {*signature(WIRES[name]).parameters}
