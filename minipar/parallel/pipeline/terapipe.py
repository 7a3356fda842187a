"""TeraPipe: a pipeline of slices of tokens, so that a long sequence keeps all stages at work.

    stage 0   F0 F1 F2 F3 ·  ·  ·  ·  B3 B2 B1 B0         slice 2's queries meet the keys and values
    stage 1      F0 F1 F2 F3 ·  ·  B3 B2 B1 B0            of slices 0 and 1, which their forwards
    stage 2         F0 F1 F2 F3 B3 B2 B1 B0               left on the stage

A token depends on the tokens before it alone.  So a stage computes a slice as soon as it arrives,
and keeps the slice's keys and values for those that follow.  Backward takes slices in reverse.
Each adds to the gradients of the earlier keys and values that it used.  So a slice's own B begins
with the gradients of its output, keys and values.  The gradients are the same as for whole
sequences.

If F and B are the times of a whole sequence on a stage, S slices leave each of p stages idle for
(p - 1)(F + B) / S.  A stage holds all slices.  A later slice has more to attend to, so slices are
cut to cost alike.  A token at position t counts as 6d + t for width d.  Li et al. 2021, arXiv
2102.07988.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ...autograd import Tensor
from ...backend import Array
from ...comm import Communicator
from ...comm.mesh import DeviceMesh
from ...nn import GPT, Module
from ..errors import NEEDS_SLICES_MESSAGE
from ..strategy import Microbatch, Strategy
from .executor import RankBatch
from .pipeline_only import PipelineOnly
from .schedule.actions import Action
from .slices import SlicedAttention, Slices, slice_bounds


class SliceBatch(RankBatch):
    """A rank's work on a batch whose microbatches are slices of tokens."""

    strategy: "TeraPipe"

    def do(self, action: Action, array: Array | None) -> Array | None:
        """The result; every action needs to know its slice, since backward may recompute parts."""
        self.strategy.slices.now = action.microbatch
        return super().do(action, array)

    def forward(self, action: Action, x: Array | None) -> Array:
        """The output of a slice, which also attends to the slices before it."""
        self.strategy.slices.kept[action.microbatch] = {}
        return super().forward(action, x)

    def backward(self, action: Action, grad: Array | None) -> Array | None:
        """dx from the gradients of the slice's output, keys and values."""
        x, y = self.in_flight[action[1:]]
        root = y if grad is None else (y * Tensor(grad)).sum()
        for own, leaf in self.strategy.slices.kept.pop(action.microbatch).values():
            if leaf.grad is not None:
                root += (own * Tensor(leaf.grad)).sum()
        self.in_flight[action[1:]] = x, root
        return super().backward(action, None)


class TeraPipe(PipelineOnly):
    """Trains a GPT's stages on `num_slices` slices of each sequence, by the schedule "terapipe"."""

    schedule, batch_type = "terapipe", SliceBatch

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, num_slices: int = 4,
                 **options: Any):
        super().__init__(model, ranks, **options)
        if not isinstance(model, GPT) or model.config.dropout or model.config.experts:
            raise ValueError(NEEDS_SLICES_MESSAGE)
        self.num_slices, self.slices = num_slices, Slices()
        for block in model.h:
            attention = block.attn
            attention.core = SlicedAttention.replacing(attention.core, slices=self.slices)
            if attention.rotary is not None:
                attention.rotary.around(lambda forward, qkv, heads: forward(
                    qkv, heads, self.slices.positions(qkv.shape[1])[None]), inside=True)
        model.embed.positions.around(lambda forward, places: forward(
            self.slices.positions(places.stop)), inside=True)

    def run_batch(self, microbatches: Sequence[Microbatch], loss_divisor: float, seed: int = 0,
                  step: int = 0) -> float:
        """Forward and backward of all microbatches, slice by slice; this rank's share of the loss.
        """
        slices, cut = self.slices, list[Microbatch]()
        slices.places = []
        for inputs, targets, samples in microbatches:
            first = len(cut)
            bounds = slice_bounds(inputs.shape[1], self.num_slices, self.model.config)
            for start, stop in pairwise(bounds):
                slices.places.append((first, start))
                cut.append(Microbatch(inputs[:, start:stop], targets[:, start:stop], samples))
        loss = super().run_batch(cut, loss_divisor, seed, step)
        slices.places, slices.now = [(0, 0)], 0
        return loss


class WholeSequences(Strategy):
    """Plain training: the specification of TeraPipe, which gives the same results."""
