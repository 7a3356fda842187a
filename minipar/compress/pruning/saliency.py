"""Saliency scores: numbers ≥ 0 that say how much each weight matters; the lowest are pruned.

    magnitude   |w|         the effect of removing a small weight is small         Han et al. 2015
    taylor      |w g|       L(w → 0) ≈ L - w g: the loss, to first order      Molchanov et al. 2019
    random      uniform     the baseline

A rank with a part of a weight gets that part of the scores.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from ...backend import Array, to_host
from ...nn import Module, Parameter
from ...random import generator

Scores = dict[str, np.ndarray]


def magnitude(parameters: Mapping[str, Parameter]) -> Scores:
    """|w| of each weight."""
    return {name: np.abs(to_host(p.data)) for name, p in parameters.items()}


def random(parameters: Mapping[str, Parameter], seed: int = 0) -> Scores:
    """Uniform scores, the same for every layout: drawn for whole parameters, by name."""
    return {name: p.local_part(generator(seed, "prune", name).random(p.global_shape))
            for name, p in parameters.items()}


def taylor(parameters: Mapping[str, Parameter]) -> Scores:
    """|w g| of each weight; `calibrate` sets the gradients g.

    Raises ValueError for a parameter without a gradient.
    """
    for name, p in parameters.items():
        if p.grad is None:
            raise ValueError(f"{name} has no gradient: run a backward over calibration batches "
                             "first, and do not reset its gradients")
    return {name: np.abs(to_host(p.data) * to_host(p.grad)) for name, p in parameters.items()}


def calibrate(model: Module, batches: Iterable[tuple[Array, Array]]) -> None:
    """Set the gradients to the sum over `batches` (inputs, targets) of each loss's gradient."""
    model.zero_grad()
    for inputs, targets in batches:
        model.loss(inputs, targets).backward()
