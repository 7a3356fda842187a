"""The formats: float16, bfloat16, the float8s, float6, float4, and the blocks of the OCP standard.

    name            bits: sign, exponent, mantissa      greatest
    bfloat16        1, 8, 7                             3.4e38
    float8_e4m3fn   1, 4, 3                             448
    float8_e5m2     1, 5, 2                             57,344
    mxfp4           1, 2, 1 and a scale for 32          6 times the scale

The names are as in ml_dtypes, PyTorch and the OCP specification of MX formats.
"""

from .blocks import BlockFormat
from .format import Format

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
