"""Quantization: weights and activations in few bits."""
