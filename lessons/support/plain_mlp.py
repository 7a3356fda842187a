"""The library's MLP with the weights of micro's, which has no biases: what lessons compare with."""

from collections.abc import Sequence

import numpy as np

from minipar.nn import MLP


def mlp_of(weights: Sequence[np.ndarray]) -> MLP:
    """A float64 MLP whose layers have these weights (in, out), and biases of 0."""
    model = MLP([len(weights[0]), *(w.shape[1] for w in weights)]).initialize(0, np.float64)
    for i, w in enumerate(weights):
        model[2 * i].weight.data[...], model[2 * i].bias.data[...] = w, 0
    return model
