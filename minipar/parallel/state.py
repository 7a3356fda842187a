"""The parameters of a strategy by name, whole, wherever their parts are: for checkpoints.

    a shard           the pieces of all ranks make up its flat parameter
    a stage's slab    the slabs of all stages, one after the other; with tp or ep, boxes of each

The classes are bases of Strategy, Shard and StageSlab.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from ..backend import Array, to_host
from ..comm import Communicator
from ..comm.collectives import all_gather
from ..nn import Slab
from ..nn.slab import FlatBuffer, Segment


class StrategyState:
    """Base of Strategy: the parameters for a checkpoint, or changed by hand."""

    slabs: Sequence[FlatBuffer]

    def gather(self) -> None:
        """Give every rank the parameters that are in the `slabs` of others.  Collective.

        `step` does it.  Call it after you have changed `slabs` in another way: with ZeRO-1 and
        ZeRO-2 a rank computes with all parameters, but its slabs are a part of them.
        """

    def state_dict(self) -> dict[str, np.ndarray]:
        """A host copy of every parameter by its full name.  Collective."""
        return {name: values for slab in self.slabs
                for name, values in slab.named(slab.data).items()}


class ShardState:
    """Base of Shard."""

    comm: Communicator
    counts: list[int]
    layout: list[Segment]

    def named(self, values: Array) -> dict[str, np.ndarray]:
        """`values`, an array like `data`, gathered from all ranks, by name.  Collective."""
        with self.comm.labelled("state"):
            whole = to_host(all_gather(self.comm, values, counts=self.counts))
        return {s.name: np.array(whole[s.start:s.stop]).reshape(s.shape) for s in self.layout}


class StageSlabState(Slab):
    """Base of StageSlab."""

    pp: Communicator
    tp: Communicator | None
    ep: Communicator | None
    comm: Communicator
    segments_of: list[list[Segment]]        # of each rank of `pp`

    def named(self, values: Array) -> dict[str, np.ndarray]:
        """The `values` of all ranks, an array as long as `data`, by parameter.  Collective."""
        counts = [sum(s.stop - s.start for s in segments) for segments in self.segments_of]
        with self.comm.labelled("state"):
            flat = to_host(all_gather(self.pp, values, counts=counts))
        found = {}
        for segment in end_to_end(chain(*self.segments_of)):
            piece = np.array(flat[segment.start:segment.stop])
            if self.tp is None and self.ep is None:
                found[segment.name] = piece.reshape(segment.shape)
            else:
                found[segment.name] = gather_parameter(self.tp, segment, piece, self.ep)
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
