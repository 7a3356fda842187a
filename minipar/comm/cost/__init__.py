"""What a collective costs: exactly for any p and n (`predict`), or by the textbook (`textbook`).

    seconds = rounds · α + bytes · β + reduced · γ

α is the latency of a message in seconds; β the seconds per byte of a link, 1 / bandwidth; γ the
seconds per byte that a rank combines (Thakur, Rabenseifner & Gropp 2005, section 3).

`choose` takes the least of them on a `Network`, whose links within and between nodes a simulated
cluster knows, and `fit` finds on a real machine.  `predict` is derived apart from the collectives'
code, from who talks to whom in each round, so that what is counted on the simulated cluster can be
compared with it.
"""

from ..collectives.all_reduce import BLOCK_BYTES
from ..collectives.broadcast import best_num_segments
from .choose import candidates, choose, crossings
from .fit import Fit, fit
from .model import Cost, seconds
from .network import Network, network_of_cluster, runs_of, seconds_on
from .predict import predict
from .textbook import textbook

__all__ = ["BLOCK_BYTES", "Cost", "Fit", "Network", "best_num_segments", "candidates", "choose",
           "crossings", "fit", "network_of_cluster", "predict", "runs_of", "seconds", "seconds_on",
           "textbook"]
