"""Differentiable operations, one file for each family, which the file is named after.

Two files are no family: operators.py gives Tensor its Python operators, and rounding.py rounds to a
number format.
"""
