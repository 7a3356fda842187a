"""The wires that a run can choose: `--reduce-dtype NAME`; `--gather-dtype` takes number formats."""

from collections.abc import Callable
from inspect import signature

from ...number_formats import BFLOAT16, FLOAT16
from .gradient_compression.onebit_adam import OneBitAdam
from .gradient_compression.onebit_sgd import OneBitSGD
from .gradient_compression.powersgd import PowerSGD
from .gradient_compression.sign_vote import SignVote
from .gradient_compression.signs import Signs
from .gradient_compression.tensor_wire import TensorWire
from .gradient_compression.terngrad import TernGrad
from .gradient_compression.threshold import Threshold
from .gradient_compression.top_k import DGC, TopK
from .low_precision import LowPrecisionWire
from .quantized.block_codec import BlockCodec
from .quantized.quantized_collectives import QuantizedWire
from .wire import UNCOMPRESSED, Wire

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
