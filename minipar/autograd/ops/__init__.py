"""Differentiable operations: one file for each family, with the family's name.

    matmul, attention, embedding        products; attention; rows of a table and rotary positions
    activations, elementwise            non-linearities, softmax, dropout; arithmetic
    normalization, cross_entropy        layer norm and RMS norm; the loss
    reductions, movement                sums, means, maxima; shapes, axes, slices

A function named ..._by_autograd writes the operation of the class below it in plain operations.

Two files are no family: operators.py gives Tensor its Python operators, and rounding.py rounds to a
number format.
"""
