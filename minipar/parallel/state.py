"""The parameters of a strategy by name, whole, wherever their parts are: for checkpoints.

    a shard           the pieces of all ranks make up its run of parameters
    a stage's slab    the slabs of all stages, one after the other; with tp or ep, boxes of each

Each function takes the strategy, shard or slab first; their classes name them as methods.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ..backend import Array, to_host
from ..comm import Communicator
from ..comm.collectives import all_gather
from ..nn.slab import Segment

if TYPE_CHECKING:
    from .pipeline.stage_slab import StageSlab
    from .shards import Shard
    from .strategy import Strategy


def state_dict(strategy: "Strategy") -> dict[str, np.ndarray]:
    """A host copy of every parameter by its full name.  Collective."""
    return {name: values for slab in strategy.slabs
            for name, values in slab.named(slab.data).items()}


def named_shard(shard: "Shard", values: Array) -> dict[str, np.ndarray]:
    """`values`, an array like `data`, gathered from all ranks, by name.  Collective."""
    with shard.comm.labelled("state"):
        whole = to_host(all_gather(shard.comm, values, counts=shard.counts))
    return {s.name: np.array(whole[s.start:s.stop]).reshape(s.shape) for s in shard.layout}


def named_stage_slab(slab: "StageSlab", values: Array) -> dict[str, np.ndarray]:
    """The `values` of all ranks, an array as long as `data`, by parameter.  Collective."""
    counts = [sum(s.stop - s.start for s in segments) for segments in slab.segments_of]
    with slab.comm.labelled("state"):
        flat = to_host(all_gather(slab.pp, values, counts=counts))
    found = {}
    for segment in end_to_end(chain(*slab.segments_of)):
        piece = np.array(flat[segment.start:segment.stop])
        if slab.tp is None and slab.ep is None:
            found[segment.name] = piece.reshape(segment.shape)
        else:
            found[segment.name] = gather_parameter(slab.tp, segment, piece, slab.ep)
    return found


def end_to_end(segments: Iterator[Segment]) -> Iterator[Segment]:
    """The segments moved so that each begins where the one before ends."""
    start = 0
    for segment in segments:
        stop = start + segment.stop - segment.start
        yield replace(segment, start=start, stop=stop)
        start = stop


def gather_parameter(tp: Communicator | None, segment: Segment, piece: Array,
                     ep: Communicator | None = None) -> np.ndarray:
    """The global array of which `piece`, flat, is this rank's box; all ranks call it.

    The ranks of `ep`, if given, have other experts, axis 0.  Those of `tp` have cut other axes.
    """
    values = np.array(piece).reshape(segment.shape)
    for dim, total in enumerate(segment.global_shape):
        if values.shape[dim] != total:
            comm = tp if ep is None or dim else ep
            assert comm is not None         # one of them has cut this axis
            with comm.labelled("state"):
                values = all_gather(comm, values, dim, total)
    if segment.order is None:
        return np.ascontiguousarray(values)
    unordered = np.empty_like(values)
    unordered[..., np.array(segment.order)] = values
    return unordered
