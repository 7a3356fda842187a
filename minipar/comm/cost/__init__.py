"""What a collective costs: exactly for any p and n (`predict`), or by the textbook (`textbook`).

    seconds = rounds · α + bytes / β + reduced / γ          α latency, β bandwidth, γ combining

`predict` is derived apart from the collectives' code, from who talks to whom in each round, so
that what is counted on the simulated cluster can be compared with it.
"""

from .model import Cost, seconds
from .predict import predict
from .textbook import best_num_segments, choose, textbook

__all__ = ["Cost", "best_num_segments", "choose", "predict", "seconds", "textbook"]
