"""A GPT that computes new tokens only: older ones are keys and values in a cache.

    cached_forward.py    one step of the model over a cache: training's blocks, cached attention
    plain_layers.py      the layers of these blocks as functions of arrays, without a graph

Read them in this order.
"""

from .cached_forward import forward_over_cache

__all__ = ["forward_over_cache"]
