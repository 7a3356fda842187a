"""Number formats, fp16 to fp4: the codes and the rounding of each (training in them: precision).

    x = BFLOAT16.round(x)               float32 in, float32 out: simulated low precision
    codes = BFLOAT16.encode(x)          uint16, half the bytes
    x = BFLOAT16.decode(codes)

    codes.py       the codes of a format: what each means, and the code of a number
    number.py      rounding to the numbers of a format: fp16, bf16, fp8, fp6, fp4
    rounding.py    rounding to nearest and stochastic rounding, without a loop over numbers
    blocks.py      32 small numbers that share a scale: mxfp8, mxfp6, mxfp4
    packing.py     codes of 4 or 6 bits, without gaps in bytes

Arithmetic is done in float32 and rounded once per operation.  The names are the usual ones, of
ml_dtypes, PyTorch (torch.float8_e4m3fn) and the OCP specification (MXFP4).

`precision/` trains in these formats: it chooses a format for each module, and scales the loss.
`compress/quantization/` replaces the weights of a trained model by few-bit codes with scales.
"""

from .blocks import FLOAT8_E8M0, BlockFormat
from .number import Format
from .packing import pack, unpack

# These overflow to infinity, or saturate in formats without it.  ml_dtypes 0.6 makes NaN in fn and
# fnuz, PyTorch 2.13 in fnuz: `with_overflow("nan")`.
FLOAT16 = Format("float16", 5, 10, 15, "ieee", "inf")
BFLOAT16 = Format("bfloat16", 8, 7, 127, "ieee", "inf")
FLOAT8_E5M2 = Format("float8_e5m2", 5, 2, 15, "ieee", "inf")
FLOAT8_E4M3 = Format("float8_e4m3", 4, 3, 7, "ieee", "inf")
FLOAT8_E3M4 = Format("float8_e3m4", 3, 4, 3, "ieee", "inf")
FLOAT8_E4M3FN = Format("float8_e4m3fn", 4, 3, 7, "fn", "saturate")
FLOAT8_E4M3FNUZ = Format("float8_e4m3fnuz", 4, 3, 8, "fnuz", "saturate")
FLOAT8_E5M2FNUZ = Format("float8_e5m2fnuz", 5, 2, 16, "fnuz", "saturate")
FLOAT8_E4M3B11FNUZ = Format("float8_e4m3b11fnuz", 4, 3, 11, "fnuz", "saturate")
FLOAT6_E2M3 = Format("float6_e2m3", 2, 3, 1, "none", "saturate")
FLOAT6_E3M2 = Format("float6_e3m2", 3, 2, 3, "none", "saturate")
FLOAT4_E2M1 = Format("float4_e2m1", 2, 1, 1, "none", "saturate")

FORMATS = {f.name: f for f in (
    FLOAT16, BFLOAT16, FLOAT8_E5M2, FLOAT8_E4M3, FLOAT8_E3M4, FLOAT8_E4M3FN, FLOAT8_E4M3FNUZ,
    FLOAT8_E5M2FNUZ, FLOAT8_E4M3B11FNUZ, FLOAT6_E2M3, FLOAT6_E3M2, FLOAT4_E2M1)}

# Elements of blocks saturate; infinities and NaN are the scale's business.
MXFP8_E4M3 = BlockFormat("mxfp8_e4m3", FLOAT8_E4M3FN)
MXFP8_E5M2 = BlockFormat("mxfp8_e5m2", FLOAT8_E5M2.with_overflow("saturate"))
MXFP6_E2M3 = BlockFormat("mxfp6_e2m3", FLOAT6_E2M3)
MXFP6_E3M2 = BlockFormat("mxfp6_e3m2", FLOAT6_E3M2)
MXFP4 = BlockFormat("mxfp4", FLOAT4_E2M1)
BLOCK_FORMATS = {f.name: f for f in (MXFP8_E4M3, MXFP8_E5M2, MXFP6_E2M3, MXFP6_E3M2, MXFP4)}

__all__ = ["BFLOAT16", "BLOCK_FORMATS", "FLOAT16", "FLOAT4_E2M1", "FLOAT6_E2M3", "FLOAT6_E3M2",
           "FLOAT8_E3M4", "FLOAT8_E4M3", "FLOAT8_E4M3B11FNUZ", "FLOAT8_E4M3FN", "FLOAT8_E4M3FNUZ",
           "FLOAT8_E5M2", "FLOAT8_E5M2FNUZ", "FLOAT8_E8M0", "FORMATS", "MXFP4", "MXFP6_E2M3",
           "MXFP6_E3M2", "MXFP8_E4M3", "MXFP8_E5M2", "BlockFormat", "Format", "pack", "unpack"]
