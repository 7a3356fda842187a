"""Methods of compression: make a trained model smaller.

    quantization/   few-bit weights and activations: scales, observers, GPTQ, QAT
    pruning/        masks, scores, structured pruning, sparse storage
    distillation/   a small student learns from a teacher, local or spread over ranks
    load.py         a checkpoint, with the compression steps it lists, becomes a model
    footprint.py    bytes, FLOPs and seconds of a model's versions

`minipar quantize`, `prune` and `distill` use these methods; `train/recipes/` has the training runs
of the last two.  `minipar study` compares the models that these commands make.  Messages of few
bits, which training sends, are in `parallel/wire_formats/`.
"""

from ..number_formats.affine import SCHEMES, IntGrid
from .load import load_model
from .pruning.serialization import pack_masked
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
           "IntegerLinear", "Observer", "QuantizedEmbedding", "QuantizedLinear", "QuantizedTensor",
           "affine_matmul", "convert", "freeze", "gptq", "int_matmul", "load_model", "pack_masked",
           "pack_quantized", "prepare_qat", "quantize"]
