"""How much a weight matters: a score ≥ 0 for each; those with the lowest are pruned.

    magnitude   |w|         what is nearly 0 may as well be 0         Han et al. 2015
    taylor      |w g|       L(w → 0) ≈ L - w g: the loss, to first order      Molchanov et al. 2019
    random      uniform     what any other must beat

A rank that has a part of a weight gets that part of the scores.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from ...backend import Array, to_host
from ...nn import Module, Parameter
from ...random import generator

Scores = dict[str, np.ndarray]


def magnitude(parameters: Mapping[str, Parameter]) -> Scores:
    """|w| of each."""
    return {name: np.abs(to_host(p.data)) for name, p in parameters.items()}


def random(parameters: Mapping[str, Parameter], seed: int = 0) -> Scores:
    """The same for every layout: drawn for whole parameters, by name."""
    return {name: p.local_part(generator(seed, "prune", name).random(p.global_shape))
            for name, p in parameters.items()}


def taylor(parameters: Mapping[str, Parameter]) -> Scores:
    """|w g| from the gradients that a backward over calibration data has left in the parameters.

    Raises ValueError for a parameter that has none.
    """
    for name, p in parameters.items():
        if p.grad is None:
            raise ValueError(f"{name} has no gradient: run a backward over calibration batches "
                             "first, and do not forget its gradients")
    return {name: np.abs(to_host(p.data) * to_host(p.grad)) for name, p in parameters.items()}


def calibrate(model: Module, batches: Iterable[tuple[Array, Array]]) -> None:
    """Leave the gradient of the sum of the losses of `batches`, (inputs, targets), in the model."""
    model.zero_grad()
    for inputs, targets in batches:
        model.loss(inputs, targets).backward()


METHODS: dict[str, Callable[..., Scores]] = {"magnitude": magnitude, "random": random,
                                             "taylor": taylor}
