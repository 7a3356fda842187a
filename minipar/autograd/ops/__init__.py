"""Differentiable operations, one file for each family, which the file is named after.

    matmul, attention, embedding        products, and operations made of them
    activations, elementwise            non-linearities, softmax, dropout; arithmetic
    normalization, cross_entropy        layer norm and RMS norm; the loss
    reductions, movement                sums and means; shapes, axes, slices

A function named ..._by_autograd writes the operation that follows it in plain operations.

Two files are no family: operators.py gives Tensor its Python operators, and rounding.py rounds to a
number format.
"""
