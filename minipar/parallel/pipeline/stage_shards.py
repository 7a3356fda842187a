"""Shards over dp of a stage's slab: one piece of the slab, or one of each of its flat parameters.

    slab             [ wpe | h.0          | h.1          ]       of all ranks of dp
    ZeRO-1, dp 0     [ ────────────────── ]                      one piece, a view of the slab
    FSDP, dp 0       [ ─── | ──────       | ──────       ]       one of each flat parameter, no slab

Optimizers, clipping and checkpoints read either as they read a slab.  `named` gathers over dp, pp
and tp, so every rank gets the parameters of all stages.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...backend import Array, allocate_zeros
from ...comm import Communicator
from ...comm.collectives import all_gather, chunk_bounds
from ...nn.slab import Segment
from ..shards import Shard
from ..zero.fsdp_unit import FlatParameter
from .stage_slab import StageSlab


class ShardOfStage:
    """Base: this rank's share over `dp` of `slab`; a norm is summed over `comm`."""

    slab: StageSlab
    dp: Communicator
    comm: Communicator
    is_copy: bool           # True: another stage counts it in norms

    def gather(self, values: Array) -> Array:
        """The `values` of all ranks of `dp`, an array as long as the slab."""
        raise TypeError(f"{type(self).__name__} defines no gather()")

    def named(self, values: Array) -> dict[str, np.ndarray]:
        """The `values` of all ranks, an array as long as `data`, by parameter.  Collective."""
        with self.dp.labelled("state"):
            whole = self.gather(values)
        return self.slab.named(whole)


class StageShard(ShardOfStage, Shard):
    """One piece of the slab: ZeRO-1."""

    def __init__(self, slab: StageSlab, dp: Communicator, comm: Communicator):
        bounds = chunk_bounds(slab.data.size, dp.size)
        mine = slice(*bounds[dp.rank])
        super().__init__(slab.parameters, slab.segments, dp, bounds, slab.data[mine],
                         slab.grad[mine])
        self.slab, self.dp, self.comm, self.is_copy = slab, dp, comm, slab.is_copy

    def gather(self, values: Array) -> Array:
        """The `values` of all ranks of `dp`, an array as long as the slab."""
        return all_gather(self.dp, values, counts=self.counts)


class StageFlats(ShardOfStage):
    """One piece of each flat parameter of the slab: FSDP.  The slab's own arrays are freed.

    A flat parameter has those numbered start … stop - 1, for each (start, stop) of `cuts`.
    """

    def __init__(self, slab: StageSlab, dp: Communicator, comm: Communicator,
                 cuts: Sequence[tuple[int, int]]):
        self.slab, self.dp, self.comm, self.is_copy = slab, dp, comm, slab.is_copy
        self.parameters = slab.parameters
        spans = [(slab.segments[a].start, slab.segments[b - 1].stop) for a, b in cuts]
        all_bounds = [chunk_bounds(stop - start, dp.size) for start, stop in spans]
        size = sum(stop - start for start, stop in (bounds[dp.rank] for bounds in all_bounds))
        self.data = allocate_zeros("parameters", slab.data, size)
        self.grad = allocate_zeros("gradients", self.data)
        self.flats: list[FlatParameter] = []
        self.segments: list[Segment] = []
        here = 0                                    # where the next piece begins in `data`
        for (a, b), (start, stop), bounds in zip(cuts, spans, all_bounds):
            whole, (begin, end) = slab.data[start:stop], bounds[dp.rank]
            mine = slice(here, here + end - begin)
            self.data[mine] = whole[begin:end]
            layout = [moved(segment, -start) for segment in slab.segments[a:b]]
            shard = Shard(slab.parameters[a:b], layout, dp, bounds, self.data[mine],
                          self.grad[mine])
            self.flats.append(FlatParameter(shard, shard.data, shard.counts, slab.data))
            self.segments += [moved(segment, here) for segment in shard.segments]
            here = mine.stop
        slab.drop()

    @property
    def has_grad(self) -> bool:
        """True after a backward, until `zero_grad`."""
        return any(flat.shard.has_grad for flat in self.flats)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for flat in self.flats:
            flat.shard.zero_grad()

    def complete_grad(self) -> Array:
        """The gradient, with zeros for pieces without one since `zero_grad`."""
        for flat in self.flats:
            flat.shard.complete_grad()
        return self.grad

    def gather(self, values: Array) -> Array:
        """The `values` of all ranks of `dp`, an array as long as the slab."""
        whole = np.empty(sum(sum(flat.lengths) for flat in self.flats), values.dtype, like=values)
        here = there = 0
        for flat in self.flats:
            piece = values[here:here + flat.lengths[self.dp.rank]]
            all_gather(self.dp, piece, counts=flat.lengths,
                       out=whole[there:there + sum(flat.lengths)])
            here, there = here + len(piece), there + sum(flat.lengths)
        return whole


def moved(segment: Segment, by: int) -> Segment:
    """The segment, `by` elements further in its array."""
    return replace(segment, start=segment.start + by, stop=segment.stop + by)
