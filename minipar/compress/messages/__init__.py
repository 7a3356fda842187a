"""Quantized messages: collectives that send fewer bits."""
