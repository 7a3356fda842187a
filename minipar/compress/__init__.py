"""Compression: what is too big to deploy is rounded, thinned out or imitated."""

from .load import load_model
from .pruning.serialization import pack_masked
from .quantization.affine import SCHEMES, IntGrid
from .quantization.float_grid import FLOAT_GRIDS, FloatGrid
from .quantization.gptq import gptq
from .quantization.granularity import Granularity
from .quantization.int_matmul import affine_matmul, int_matmul
from .quantization.layers import IntegerLinear, QuantizedEmbedding, QuantizedLinear
from .quantization.observers import Observer
from .quantization.post_training import quantize
from .quantization.qat import FakeQuantize, convert, freeze, prepare_qat
from .quantization.quantized_tensor import QuantizedTensor
from .quantization.serialization import pack_quantized

__all__ = ["FLOAT_GRIDS", "SCHEMES", "FakeQuantize", "FloatGrid", "Granularity", "IntGrid",
           "IntegerLinear",
           "Observer", "QuantizedTensor", "QuantizedEmbedding", "QuantizedLinear",
           "affine_matmul", "convert", "freeze", "gptq", "int_matmul", "load_model",
           "pack_masked", "pack_quantized", "prepare_qat", "quantize"]
