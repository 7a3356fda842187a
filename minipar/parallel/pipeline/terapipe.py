"""TeraPipe: a pipeline of slices of tokens, so that one long sequence keeps all stages at work.

    stage 0   F0 F1 F2 F3 ·  ·  ·  ·  B3 B2 B1 B0         slice 2's queries meet the keys and values
    stage 1      F0 F1 F2 F3 ·  ·  B3 B2 B1 B0            of slices 0 and 1, which their forwards
    stage 2         F0 F1 F2 F3 B3 B2 B1 B0               left on the stage

A token depends on the tokens before it alone.  So a stage computes a slice as soon as it has it,
and keeps its keys and values for the slices that follow.  Backward takes slices in reverse: each
adds the gradients of what it used of others, and a slice's own B begins with the gradients of its
output, keys and values.  The gradients are those of whole sequences.

S slices on p stages are idle (p - 1)(F + B) / S of a sequence; all of them are held.  A later slice
has more to attend to, so slices are cut to cost alike: a token at position t as 6d + t for width d.
Li et al. 2021, arXiv 2102.07988.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ...autograd import Tensor, backward
from ...backend import Array
from ...comm import Communicator
from ...comm.mesh import DeviceMesh
from ...nn import GPT, Module
from ...nn.gpt import too_long_error
from ..errors import NEEDS_SLICES_MESSAGE, SLICES_IN_REVERSE_MESSAGE
from ..strategy import Microbatch, Strategy
from .cut import cut_evenly
from .executor import RankBatch
from .schedule.actions import Action
from .slices import SlicedAttention, Slices


class SliceBatch(RankBatch):
    """A rank's work on a batch whose microbatches are slices of tokens."""

    strategy: "TeraPipe"

    def forward(self, action: Action, x: Array | None) -> Array:
        """The output of a slice, beside the slices before it."""
        slices = self.strategy.slices
        slices.now = action.microbatch
        slices.kept[slices.now] = {}
        return super().forward(action, x)

    def backward(self, action: Action, grad: Array | None) -> Array | None:
        """dx from the gradients of the slice's output, keys and values."""
        x, y = self.in_flight.pop(action[1:])
        roots = [(y, grad)] + [(own, leaf.grad) for own, leaf in
                               self.strategy.slices.kept.pop(action.microbatch).values()]
        backward(sum((root * Tensor(g)).sum() if g is not None else root
                     for root, g in roots if root is y or g is not None), poll=self.poll)
        return x.grad if action.stage else None


class TeraPipe(Strategy):
    """Trains a GPT's stages on `num_slices` slices of each sequence, by the schedule "terapipe"."""

    def __init__(self, model: Module, ranks: Communicator | DeviceMesh, num_slices: int = 4,
                 **options: Any):
        if options.pop("schedule", None) not in (None, "terapipe"):
            raise ValueError(SLICES_IN_REVERSE_MESSAGE)
        pipeline = isinstance(ranks, DeviceMesh) and {*ranks.axes} == {"pp"}
        super().__init__(model, ranks, **options | {"schedule": "terapipe"} if pipeline else {})
        if not (pipeline and isinstance(model, GPT)) or model.config.dropout \
                or model.config.experts:
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
        assert self.pipeline is not None
        self.pipeline.batch_type = SliceBatch

    def run_batch(self, microbatches: Sequence[Microbatch], loss_divisor: float, seed: int = 0,
                  step: int = 0) -> float:
        """Forward and backward of all slices of all microbatches; this rank's share of the loss."""
        slices, cut = self.slices, list[Microbatch]()
        slices.places = []
        for inputs, targets, samples in microbatches:
            first = len(cut)
            for start, stop in pairwise(self.bounds(inputs.shape[1])):
                slices.places.append((first, start))
                cut.append(Microbatch(inputs[:, start:stop], targets[:, start:stop], samples))
        loss = super().run_batch(cut, loss_divisor, seed, step)
        slices.places, slices.now = [(0, 0)], 0
        return loss

    def bounds(self, time: int) -> list[int]:
        """Where slices of a sequence start and stop, so that the costliest costs least."""
        if time > self.model.config.context:
            raise too_long_error(time, self.model.config.context)
        if time < self.num_slices:
            raise ValueError(f"a sequence of {time} tokens has no {self.num_slices} slices: take "
                             "fewer, or longer sequences")
        costs = [6 * self.model.config.width + t for t in range(time)]
        return [0, *cut_evenly(costs, self.num_slices), time]


class WholeSequences(Strategy):
    """Plain training, which TeraPipe's equals: its specification."""
