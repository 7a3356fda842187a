"""The cost of one collective: exact for any p and n (`predict`), or by the textbook (`textbook`).

    seconds = rounds · α + bytes · β + reduced · γ

α is the latency of a message in seconds.  β is the seconds per byte of a link, 1 / bandwidth; γ the
seconds per byte that a rank combines (Thakur, Rabenseifner & Gropp 2005, section 3).

`choose` returns the fastest algorithm on a `Network`, which has a link within nodes and a link
between nodes.  A simulated cluster knows its links; on a real machine `measure` and `fit` find
them.  `predict` adds up the messages of each round, which `comm/rounds.py` lists independently of
the collectives' code.  Tests compare it with the messages counted on the simulated cluster.  The
entry of an algorithm in `comm/algorithms.py` names its rounds and its textbook form.

    alpha_beta, predict, textbook   what a collective costs
    network, choose                 which algorithm "auto" takes
    measure, fit, calibration       the same, measured on a real machine
    traffic                         bytes counted from a trace, for each axis of a mesh

The cost of a whole training step, with all its collectives, is in `minipar/parallel/cost`.
"""

from ..collectives.all_reduce import BLOCK_BYTES
from ..collectives.broadcast import best_num_segments
from .alpha_beta import Cost, seconds
from .choose import candidates, choose, crossings
from .fit import Fit, fit
from .network import Network, network_of_cluster, run_lengths, seconds_on
from .predict import predict
from .textbook import textbook

__all__ = ["BLOCK_BYTES", "Cost", "Fit", "Network", "best_num_segments", "candidates", "choose",
           "crossings", "fit", "network_of_cluster", "predict", "run_lengths", "seconds",
           "seconds_on", "textbook"]
