"""Rotary positions of a GPT: the angles by which queries and keys are turned.

    angle of pair j of a head of width n, at position i:    i · θ^(-2j/n), its frequency scaled

    scaling   linear     f / factor: a context `factor` times as long
              llama3     with the wavelength w = 2π/f and the original context L:
                         w < L/high: f        w > L/low: f / factor        between: in between

`rotary` in autograd/ops/embedding.py turns by these angles.  Su et al. 2021; scaling: Chen et al.
2023 (linear), Llama 3.1's code (llama3).
"""

import math
from dataclasses import dataclass

import numpy as np

from .. import autograd as ag
from ..autograd import Tensor
from ..backend import Array, asarray_like
from .module import Module

SCALINGS = ("linear", "llama3")


@dataclass(frozen=True)
class RopeConfig:
    """The angles of rotary positions.  Raises ValueError for impossible values."""

    theta: float = 10_000.0
    scaling: str | None = None          # None, "linear" or "llama3"
    factor: float = 1.0                 # of the context, by either scaling; the rest is llama3's
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192

    def __post_init__(self):
        if self.scaling is not None and self.scaling not in SCALINGS:
            raise ValueError(f"unknown rotary scaling {self.scaling!r}: choose from "
                             f"{', '.join(SCALINGS)}, or None")
        for name in ("theta", "factor", "low_freq_factor", "original_context"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(f"high_freq_factor must be above low_freq_factor "
                             f"{self.low_freq_factor}, not {self.high_freq_factor}")

    @classmethod
    def parse(cls, text: str) -> "RopeConfig":
        """The configuration that `str` of one wrote: "10000" or "500000,llama3,8,1,4,8192".

        That is theta, scaling, factor, and for llama3 the low and the high frequency factor
        and the original context.  Raises ValueError for any other text.
        """
        theta, *scaling = text.split(",")
        try:
            if not scaling:
                return cls(float(theta))
            kind, factor, *more = scaling
            low, high, context = more or ("1", "4", "8192")
            return cls(float(theta), kind, float(factor), float(low), float(high), int(context))
        except ValueError as error:
            raise ValueError(f"rotary positions are written THETA, THETA,linear,FACTOR or "
                             f"THETA,llama3,FACTOR,LOW,HIGH,CONTEXT, not {text!r} ({error})") \
                from error

    def __str__(self):
        values: list[float | str | None] = [self.theta]
        if self.scaling:
            values += [self.scaling, self.factor]
        if self.scaling == "llama3":
            values += [self.low_freq_factor, self.high_freq_factor, self.original_context]
        return ",".join(each if isinstance(each, str) else f"{each:.17g}" for each in values)

    def frequencies(self, width: int) -> np.ndarray:
        """The frequency of each pair (width/2,) in radians per position, float64."""
        f = self.theta ** (-2 * np.arange(width // 2) / width)
        if self.scaling == "linear":
            return f / self.factor
        if self.scaling == "llama3":
            low, high = self.low_freq_factor, self.high_freq_factor
            turns = self.original_context * f / (2 * math.pi)       # within the original context
            s = np.clip((turns - low) / (high - low), 0, 1)
            return f * ((1 - s) / self.factor + s)
        return f


class RotaryPositions(Module):
    """Turns the heads of queries and keys, of width `width`, by their positions."""

    def __init__(self, rope: RopeConfig, width: int):
        super().__init__()
        if width % 2:
            raise ValueError(f"rotary positions turn pairs, but a head has a width of {width}: "
                             "choose an even one")
        self.rope, self.width = rope, width

    def forward(self, qkv: Tensor, num_heads: int, positions: Array | None = None) -> Tensor:
        """qkv (b, t, heads n), its first `num_heads` heads turned.

        `positions` (b or 1, t) are integers on the host, by default 0 … t - 1.
        """
        if positions is None:
            positions = np.arange(qkv.shape[1])[None]
        angles = positions[..., None] * self.rope.frequencies(self.width)
        cos, sin = (asarray_like(f(angles).astype(qkv.dtype), qkv.data) for f in (np.cos, np.sin))
        return ag.rotary(qkv, cos, sin, num_heads)
