"""Compression: what is too big to deploy is rounded, thinned out or imitated."""

from .load import load_model
from .pruning.files import pack_masked
from .quantization.affine import SCHEMES, Grid
from .quantization.files import pack_model
from .quantization.float_grid import FLOAT_GRIDS, FloatGrid
from .quantization.gptq import gptq
from .quantization.granularity import Per
from .quantization.int_product import affine_product, int_product
from .quantization.layers import IntegerLinear, QuantizedEmbedding, QuantizedLinear
from .quantization.observers import Observer
from .quantization.post_training import quantize
from .quantization.qat import convert, freeze, prepare
from .quantization.quantized import Quantized
from .quantization.straight_through import FakeQuantize

__all__ = ["FLOAT_GRIDS", "SCHEMES", "FakeQuantize", "FloatGrid", "Grid", "IntegerLinear",
           "Observer", "Per", "Quantized", "QuantizedEmbedding", "QuantizedLinear",
           "affine_product", "convert", "freeze", "gptq", "int_product", "load_model",
           "pack_masked", "pack_model", "prepare", "quantize"]
