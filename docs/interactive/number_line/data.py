"""Number line: the finite values of some formats, and what rounding does to a few numbers."""

from typing import Any

import numpy as np

from minipar.number_formats import FORMATS

SHOWN = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float6_e2m3", "float4_e2m1")


def data() -> dict[str, Any]:
    """The formats: bits of exponent and mantissa, bias, largest value, what overflow does."""
    found = []
    for name in SHOWN:
        each = FORMATS[name]
        beyond = np.array([np.finfo(np.float32).max])
        largest = float(each.with_overflow("saturate").round(beyond)[0])
        found.append({"name": name, "exponent": each.exponent_bits, "mantissa": each.mantissa_bits,
                      "bias": each.bias, "largest": largest, "overflow": each.overflow})
    return {"formats": found, "value": 0.3}
