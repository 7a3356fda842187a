"""Using a trained model."""

from .generate import generate

__all__ = ["generate"]
