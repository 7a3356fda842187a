"""Prune: give every weight a score, and mask the lowest, with one threshold for all ranks.

    masks = Masks(model, prune(model, magnitude(prunable_weights(model)), 0.8))    one process
    masks.update(prune(model, magnitude(…), 0.8, masks=masks, mesh=mesh))          on a mesh

Whether a model is cut over ranks (tp) or copied to every rank (dp), all ranks must find the masks
that one process finds.  They agree on one threshold (`distributed_topk.py`), and each weight counts
once, on however many ranks it lies.  Han et al. 2015, Learning both weights and connections for
efficient neural networks.
"""

import math
from collections.abc import Mapping

import numpy as np

from ...comm import Communicator
from ...comm.mesh import DeviceMesh
from ...nn import Module, Parameter
from .distributed_topk import mark_k_smallest, sortable_keys
from .masks import Masks

METHODS = ("magnitude", "random", "taylor", "structured", "2:4")
SCOPES = ("global", "layer")
COPIES = "dp", "replicate"          # axes along which every rank has a copy of the model


def check_amount(amount: float) -> None:
    """Raise ValueError unless `amount` is in [0, 1)."""
    if not 0 <= amount < 1:
        raise ValueError(f"an amount is the share of weights to prune, in [0, 1), not {amount}: "
                         "0.8 keeps every fifth")


def prune(model: Module, scores: Mapping[str, np.ndarray], amount: float, scope: str = "global",
          masks: Masks | None = None, mesh: DeviceMesh | None = None) -> dict[str, np.ndarray]:
    """Masks without the `amount` of weights that have the lowest scores, by full name.

    `scores` are of this rank's part of each parameter.  The amount is a share of the elements of
    all these parameters together, or with scope "layer" of each of them.  The number of pruned
    elements is rounded, ties to even.  Among equal scores the first are pruned first.  Elements
    that `masks` has dropped stay dropped, and count as pruned.  With a `mesh`, the function is
    collective: all ranks give the same names.  Raises ValueError for an impossible amount.
    """
    check_amount(amount)
    if scope not in SCOPES:
        raise ValueError(f"unknown scope {scope!r}: choose {' or '.join(SCOPES)}")
    own = dict(model.named_parameters())
    groups = {"global": [list(scores)], "layer": [[name] for name in scores]}[scope]
    return {name: mask for names in groups for name, mask in _together(
        {name: (own[name], scores[name]) for name in names}, amount, masks, mesh).items()}


def _together(group: dict[str, tuple[Parameter, np.ndarray]], amount: float, masks: Masks | None,
              mesh: DeviceMesh | None) -> dict[str, np.ndarray]:
    keys, places, counted, num_places = [], [], [], 0
    for parameter, score in group.values():
        key = sortable_keys(score)
        if masks is not None:
            key = np.where(masks.local(parameter), key, key.dtype.type(0))  # pruned first
        keys.append(key.ravel())
        size = math.prod(parameter.global_shape)
        places.append(parameter.local_part(np.arange(num_places, num_places + size).reshape(
            parameter.global_shape)).ravel())
        counted.append(np.full(score.size, is_counted(parameter, mesh)))
        num_places += size
    comm: Communicator | None = None if mesh is None else mesh.comm
    removed = mark_k_smallest(np.concatenate(keys), np.concatenate(places),
                              round(amount * num_places), num_places, comm,
                              np.concatenate(counted))
    ends = np.cumsum([key.size for key in keys])
    found = {name: ~part.reshape(score.shape) for (name, (_, score)), part
             in zip(group.items(), np.split(removed, ends[:-1]))}
    if masks is not None:               # may have dropped more than the amount
        found = {name: mask & masks.local(group[name][0]) for name, mask in found.items()}
    return found


def is_counted(parameter: Parameter, mesh: DeviceMesh | None) -> bool:
    """True if this rank's copy of a parameter is the one that counts."""
    if mesh is None:
        return True
    return not any(mesh.coordinate(axis) for axis in mesh.axes
                   if axis in COPIES or axis in parameter.replicated)
