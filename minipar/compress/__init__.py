"""Compression: what is too big to deploy is rounded, thinned out or imitated."""

from .affine import SCHEMES, Grid
from .float_grid import FLOAT_GRIDS, FloatGrid
from .gptq import gptq
from .granularity import Per
from .int_product import affine_product, int_product
from .layers import IntegerLinear, QuantizedEmbedding, QuantizedLinear
from .load import load_model
from .observers import Observer
from .qat import convert, freeze, prepare
from .quantize import quantize
from .quantized import Quantized
from .quantized_files import pack_model
from .sparse_files import pack_masked
from .straight_through import FakeQuantize

__all__ = ["FLOAT_GRIDS", "SCHEMES", "FakeQuantize", "FloatGrid", "Grid", "IntegerLinear",
           "Observer", "Per", "Quantized", "QuantizedEmbedding", "QuantizedLinear",
           "affine_product", "convert", "freeze", "gptq", "int_product", "load_model",
           "pack_masked", "pack_model", "prepare", "quantize"]
