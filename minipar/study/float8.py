"""Weights as floats of 8 bits in checkpoints: e4m3, 32 in a row of a layer share a power of two.

    h.0.attn.c_attn.weight/codes     uint8 (outputs, inputs)
    h.0.attn.c_attn.weight/scales    uint8 (outputs, ⌈inputs / 32⌉)

They are kept so, and computed with as float32.
"""

from typing import Any

import numpy as np

from ..compress.layers import rows_of, weight_layers
from ..compress.load import Arrays, register
from ..formats import MXFP8_E4M3
from ..nn import Linear, Module

KIND = "float8"


def pack_float8(model: Module) -> tuple[Arrays, dict[str, Any]]:
    """The arrays of a model whose linear layers and embeddings are rounded, and how to read them.
    """
    arrays = model.state_dict()
    for name, layer in weight_layers(model):
        del arrays[f"{name}.weight"]
        codes, scales = MXFP8_E4M3.encode(rows_of(layer))
        arrays |= {f"{name}.weight/codes": codes, f"{name}.weight/scales": scales}
    return arrays, {"kind": KIND}


@register(KIND)
def unpack_float8(model: Module, step: dict[str, Any], arrays: Arrays) -> None:
    """Put the decoded weights among `arrays`."""
    for name, layer in weight_layers(model):
        rows = MXFP8_E4M3.decode(arrays.pop(f"{name}.weight/codes"),
                                 arrays.pop(f"{name}.weight/scales"))
        arrays[f"{name}.weight"] = np.ascontiguousarray(rows.T) if isinstance(layer, Linear) \
            else rows
