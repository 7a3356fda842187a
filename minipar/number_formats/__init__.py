"""Number formats, fp16 to fp4: the codes and the rounding of each (training in them: precision).

    x = BFLOAT16.round(x)               float32 in, float32 out: simulated low precision
    codes = BFLOAT16.encode(x)          uint16, half the bytes
    x = BFLOAT16.decode(codes)

    formats.py     the formats by name: float16, bfloat16, float8_…, mxfp4 …
    format.py      the codes of a format, and rounding to its numbers: fp16, bf16, fp8, fp6, fp4
    rounding.py    rounding to nearest and stochastic rounding, without a loop over numbers
    blocks.py      32 small numbers that share a scale: mxfp8, mxfp6, mxfp4
    affine.py      integers of 2 to 8 bits, with a scale and a zero point: compute, encode, decode
    packing.py     codes of 4 or 6 bits, without gaps in bytes

Arithmetic is done in float32 and rounded once per operation.  The names are the usual ones, of
ml_dtypes, PyTorch (torch.float8_e4m3fn) and the OCP specification (MXFP4).

`mixed_precision/` trains in these formats: a format for each module, and a scaled loss.
`compress/quantization/` replaces the weights of a trained model by few-bit codes with scales.
"""

from .blocks import FLOAT8_E8M0, BlockFormat
from .format import Format
from .formats import (
    BFLOAT16,
    BLOCK_FORMATS,
    FLOAT4_E2M1,
    FLOAT6_E2M3,
    FLOAT6_E3M2,
    FLOAT8_E3M4,
    FLOAT8_E4M3,
    FLOAT8_E4M3B11FNUZ,
    FLOAT8_E4M3FN,
    FLOAT8_E4M3FNUZ,
    FLOAT8_E5M2,
    FLOAT8_E5M2FNUZ,
    FLOAT16,
    FORMATS,
    MXFP4,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_E4M3,
    MXFP8_E5M2,
)
from .packing import pack, unpack

__all__ = ["BFLOAT16", "BLOCK_FORMATS", "FLOAT16", "FLOAT4_E2M1", "FLOAT6_E2M3", "FLOAT6_E3M2",
           "FLOAT8_E3M4", "FLOAT8_E4M3", "FLOAT8_E4M3B11FNUZ", "FLOAT8_E4M3FN", "FLOAT8_E4M3FNUZ",
           "FLOAT8_E5M2", "FLOAT8_E5M2FNUZ", "FLOAT8_E8M0", "FORMATS", "MXFP4", "MXFP6_E2M3",
           "MXFP6_E3M2", "MXFP8_E4M3", "MXFP8_E5M2", "BlockFormat", "Format", "pack", "unpack"]
