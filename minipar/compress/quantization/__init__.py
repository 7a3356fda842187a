"""Quantization: weights and activations as small integers or floats with shared scales.

    float_grid.py         floats of 8 or 4 bits times a scale: fp8, mxfp8, mxfp4
    granularity.py        the numbers that share a scale: per tensor, per channel, per group
    observers.py          the range of numbers seen: min-max, moving average, percentile, MSE
    quantized_tensor.py   packed codes with their scales and zero points
    layers.py             Linear and Embedding layers with quantized weights
    int_matmul.py         matrix products of 8-bit integers, and their zero points
    post_training.py      quantize(model): round to nearest, or GPTQ; calibrate activations
    gptq.py               GPTQ: round column by column, later columns compensate the error
    qat.py                quantization-aware training: fake quantization, straight-through
    serialization.py      quantized models in checkpoints

A *grid* is the set of values that codes can stand for, `IntGrid(8)` or `FLOAT_GRIDS["fp8"]`.
Integers with scale and zero point are in `number_formats/affine.py`: messages use them, too.
"""
