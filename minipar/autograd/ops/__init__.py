"""Differentiable operations, one file for each family."""
