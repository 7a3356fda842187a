"""Precisions, the formats that a module computes in, and presets for whole models.

    "bf16"   every module but routers computes in bfloat16
    "fp8"    linear layers multiply in 8 bits, the rest computes in bfloat16

`set_precision` (`set_precision.py`) applies them to a model.
"""

from dataclasses import dataclass

from ..nn import GPT, Linear, Module
from ..nn.moe import Router
from ..number_formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16, Format


@dataclass(frozen=True)
class Precision:
    """The formats that a module computes in; None leaves numbers as they are.

    `inputs`: the module's inputs, its weights, and the arrays that it saves.  `outputs`: results of
    operations, biases and gains, and the gradients of the inputs.  `gradients`: the gradients of
    the results.  In a precision for linear layers alone, `rest` is the precision of other modules.
    """

    name: str
    inputs: Format | None = None
    outputs: Format | None = None
    gradients: Format | None = None
    rest: "Precision | None" = None
    needs_loss_scale: bool = False      # small gradients underflow


def uniform(name: str, fmt: Format, needs_loss_scale: bool = False) -> Precision:
    """The precision with one format for everything."""
    return Precision(name, fmt, fmt, fmt, needs_loss_scale=needs_loss_scale)


FP32 = Precision("fp32")
FP16 = uniform("fp16", FLOAT16, needs_loss_scale=True)
BF16 = uniform("bf16", BFLOAT16)
# For matrix products: both factors in 8 bits, results in 16.  Values need digits, gradients need
# range: Micikevicius et al. 2022 (arXiv 2209.05433), section 3.
FP8 = Precision("fp8", FLOAT8_E4M3FN, BFLOAT16, FLOAT8_E5M2, rest=BF16, needs_loss_scale=True)
PRECISIONS = {each.name: each for each in (FP32, BF16, FP16, FP8)}       # `--precision` of a run


def precision_preset(name: str, model: Module) -> dict[str, Precision]:
    """The mapping for `set_precision` that the preset `name` stands for.

    With "fp8" the linear layers compute in 8 bits, except the one that makes the logits.  The rest,
    experts included, computes in bfloat16.  The same holds for each precision that has a `rest`.
    Routers stay in float32, so that close scores do not become ties.
    """
    if name not in PRECISIONS:
        raise ValueError(f"unknown precision {name!r}: choose from {', '.join(PRECISIONS)}")
    routers = [name for name, module in model.named_modules() if isinstance(module, Router)]
    chosen = PRECISIONS[name]
    if chosen.rest is None:
        return {"": chosen} | dict.fromkeys(routers, FP32)
    layers = [name for name, module in model.named_modules() if isinstance(module, Linear)]
    if not (isinstance(model, GPT) and model.config.tied):
        layers.pop()
    return {"": chosen.rest} | dict.fromkeys(layers, chosen) | dict.fromkeys(routers, FP32)
