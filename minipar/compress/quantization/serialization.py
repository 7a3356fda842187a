"""Quantized models in checkpoints: codes, scales and zero points under the parameter's name.

    h.0.attn.c_attn.weight/codes    uint8 (outputs, ⌈inputs · bits / 8⌉)
    h.0.attn.c_attn.weight/nonzero  uint8, if codes of zeros are not stored (`quantized_tensor.py`)
    h.0.attn.c_attn.weight/scale    float32, one for each unit; uint8 of block formats
    h.0.attn.c_attn.weight/zero     uint8, if the grid is asymmetric
    h.0.attn.c_attn.input/scale     of the layer's inputs, if they are quantized too; and /zero
    h.0.attn.c_attn.bias            a plain array, like all other parameters

A name before the slash is that of the parameter, or of the input, that is quantized.
"""

from typing import Any

import numpy as np

from ...checkpoint_file.description_rules import FLAG, TEXT, one_of, whole
from ...nn import Embedding, Linear, Module
from ...number_formats.affine import SCHEMES, IntGrid
from .float_grid import FLOAT_GRIDS
from .granularity import Granularity
from .layers import (
    IntegerLinear,
    QuantizedLayer,
    QuantizedLinear,
    layer_grid,
    quantizable_layers,
    set_quantized_weight,
    use_integer_inputs,
    weight_rows,
)
from .quantized_tensor import QuantizedTensor

KIND = "quantized"      # in description["compression"], the list of compression steps
RULES = {"bits?": whole(2, 8), "scheme?": one_of(*SCHEMES), "format?": one_of(*FLOAT_GRIDS),
         "per": TEXT, "activations": FLAG, "skip?": [TEXT]}
Arrays = dict[str, np.ndarray]


def pack_quantized(model: Module) -> tuple[Arrays, dict[str, Any]]:
    """(the arrays of a quantized model, the step for a checkpoint's description).

    Raises ValueError for a model that is not quantized, or that is cut over ranks.
    """
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, QuantizedLayer)]
    if not layers:
        raise ValueError("the model is not quantized: quantize() it first")
    for name, layer in layers:
        if layer.stand_in is not None and layer.stand_in.cut_by:
            raise ValueError(f"{name} is a {type(layer).__name__}, a part of a layer: save the "
                             "model before parallelize cuts it")
    arrays = model.state_dict()
    for name, layer in layers:
        arrays |= {f"{name}.weight/{kind}": a for kind, a in layer.quantized.arrays().items()}
        if isinstance(layer, IntegerLinear):
            arrays |= {f"{name}.input/scale": layer.input_scale,
                       f"{name}.input/zero": layer.input_zero}
    linear = next((m for _, m in layers if isinstance(m, Linear)), layers[0][1])
    grid, per = linear.quantized.grid, linear.quantized.per
    skipped = [n for n, m in model.named_modules() if type(m) in (Linear, Embedding)]
    also = {"skip": skipped} if skipped else {}
    return arrays, {"kind": KIND, **grid.metadata(), "per": str(per),
                    "activations": any(isinstance(m, IntegerLinear) for _, m in layers), **also}


def unpack_quantized(model: Module, entry: dict[str, Any], arrays: Arrays) -> None:
    """Move the quantized weights from `arrays` into a plain model, by the step `entry`."""
    if "format" in entry:
        grid = FLOAT_GRIDS[entry["format"]]
    else:
        grid = IntGrid(entry["bits"], entry["scheme"])
    per = Granularity.parse(entry["per"])
    for name, layer in quantizable_layers(model):
        if name in (entry.get("skip") or ()):
            continue
        weight = _take(arrays, f"{name}.weight/")
        try:
            quantized = QuantizedTensor.from_arrays(weight, weight_rows(layer).shape,
                                                    *layer_grid(layer, grid, per))
        except ValueError as error:
            raise ValueError(f"{name}.weight: {error}") from error
        made = set_quantized_weight(model, layer, quantized)
        if entry["activations"] and isinstance(made, QuantizedLinear):
            of_input = _take(arrays, f"{name}.input/")
            use_integer_inputs(model, made, of_input["scale"], of_input["zero"])
    model.make_slabs(model.slabs[0].data)


def _take(arrays: Arrays, prefix: str) -> dict[str, np.ndarray]:
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays.pop(name) for name in names}
