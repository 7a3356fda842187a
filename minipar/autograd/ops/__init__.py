"""Differentiable operations, one file for each family.

    elementwise.py   arithmetic with broadcasting, exp, log, sqrt, where, astype
    activations.py   relu, tanh, gelu, dropout
    reductions.py    sum, mean, max
    movement.py      reshape, transpose, broadcast_to, getitem, concatenate, split
    matmul.py        matmul, linear                 embedding.py       rows of a table
    normalization.py softmax, layer_norm            cross_entropy.py   the loss
    attention.py     scaled dot-product attention   rounding.py        rounding to a number format

operators.py gives Tensor its Python operators.
"""
