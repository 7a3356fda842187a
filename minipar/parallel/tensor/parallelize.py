"""Make a plain MLP or GPT tensor-parallel; its own code does not change.

    model = parallelize(GPT(config), mesh["tp"]).initialize(seed=0)

Modules keep their places and names, and change their class.  Parameters are cut: each rank keeps
its box of the global parameter.  Initial values are drawn by name and then cut, so they are those
of one process.  This rank's parts go into one slab, replicated parameters into another, which
clipping counts once.

    GPT    wte, lm_head by vocabulary · attn by heads · mlp, or each expert, by columns and rows ·
           norms, wpe, routers replicated
    MLP    linear layers in pairs, columns and rows; the last one of an odd number is replicated
"""

import numpy as np

from ...autograd import Tensor, linear
from ...backend import Array, to_host
from ...comm import Communicator
from ...comm.collectives import chunk_bounds
from ...nn import GPT, MLP, Dropout, Linear, Module, MoE, Slab
from ...nn.gpt import GatedFeedForward
from ...nn.module_state import check_initialized
from ...number_formats import Format
from ..conjugate import gather_from
from ..flats import gather_parameter
from ..packed_weights import weights_as_parameters
from .experts import GatheringMoE, split_experts
from .layers import (
    AXIS,
    TensorSplit,
    retype,
    split_attention,
    split_columns,
    split_rows,
)
from .low_precision import LowPrecisionSequenceSplit, LowPrecisionTensorSplit
from .sequence import RegatheringColumnLinear, SequenceSplit
from .vocabulary import split_vocabulary, vocabulary_cross_entropy


class PartialDropout(Dropout):
    """Dropout of a value that is cut along axis 1: this rank's part of the mask.

    The axis is cut by `chunk_bounds` of `total`, or in equal pieces.
    """

    tp: Communicator
    total: int | None

    def mask(self, x: Array, shape: tuple[int, ...], cuts: tuple[slice, ...] = ()) -> Array | None:
        """This rank's part of the mask, of this `shape`."""
        total = self.total or shape[0] * self.tp.size
        mine = slice(*chunk_bounds(total, self.tp.size)[self.tp.rank])
        return super().mask(x, (total, *shape[1:]), (mine, *cuts[1:]))


class TensorParallelSlab(Slab):
    """A slab of parts: each rank of `comm` has its own box of every parameter."""

    def named(self, values: Array) -> dict[str, np.ndarray]:
        """`values`, an array like `data`, gathered from all ranks, by name.  Collective."""
        with self.comm.labelled("state"):
            return {s.name: gather_parameter(self.comm, s, to_host(values[s.start:s.stop]))
                    for s in self.segments}


class TensorParallel(Module):
    """Base of the models that are cut over the ranks of `split.tp`; its methods are collective."""

    split: TensorSplit
    parts_end_whole: bool       # every part of the chain returns the same whole value on all ranks

    def make_slabs(self, like: Array) -> None:
        """Make one slab of this rank's parts, and one of the replicated parameters."""
        super().make_slabs(like)
        for slab in self.slabs:
            if AXIS not in slab.segments[0].replicated:
                slab.__class__, slab.comm = TensorParallelSlab, self.split.tp

    def state_dict(self) -> dict[str, np.ndarray]:
        """A host copy of every whole parameter by its full name, on every rank."""
        check_initialized(self)
        found = self.slabs.named([slab.data for slab in self.slabs])
        return {name: found[name] for name, _ in self.named_parameters()}


class TensorParallelMLP(TensorParallel, MLP):
    """An MLP whose linear layers are cut in pairs; a part may end within a pair."""

    parts_end_whole = False


class TensorParallelGPT(TensorParallel, GPT):
    """A GPT cut by heads, columns and vocabulary; only `forward` gathers its logits."""

    parts_end_whole = True

    def embed(self, ids: Array) -> Tensor:
        """The sum of the embeddings of tokens and positions."""
        time, p = ids.shape[1], self.split.tp.size
        if isinstance(self.split, SequenceSplit) and time % p:
            raise ValueError(f"sequence parallelism splits {time} tokens over {p} ranks, which "
                             f"does not divide: pad them to {time + p - time % p}, or leave it off")
        return super().embed(ids)

    def positions(self, time: int) -> Tensor:
        """The embeddings of the positions, of this rank's tokens."""
        return self.split.shared(self.wpe.weight)[self.places(time)]

    def places(self, time: int) -> slice | Array:
        """The positions of this rank's tokens, of `time`."""
        if not isinstance(self.split, SequenceSplit):
            return slice(time)
        return slice(*chunk_bounds(time, self.split.tp.size)[self.split.tp.rank])

    def head(self, x: Tensor) -> Tensor:
        """This rank's columns of the logits."""
        if not self.config.tied:
            return super().head(x)
        return linear(self.split.enter(self.ln_f(x)), self.wte.weight.T)

    def forward(self, ids: Array) -> Tensor:
        """ids (b, t) → all logits (b, t, V), on every rank."""
        return gather_from(self.run_all_parts(ids), self.split.tp, -1, self.config.vocab_size)

    def criterion(self, logits: Tensor, targets: Array, loss_divisor: float | None = None,
                  ignore_index: int | None = None) -> Tensor:
        """The loss of these logits, this rank's columns.  The same on every rank."""
        ignored = self.ignore_index if ignore_index is None else ignore_index
        return vocabulary_cross_entropy(logits, targets, self.split.tp, self.config.vocab_size,
                                        loss_divisor, ignored)

    def loss(self, ids: Array, targets: Array, loss_divisor: float | None = None,
             ignore_index: int | None = None) -> Tensor:
        """The loss of a batch, the same on every rank."""
        return self.criterion(self.run_all_parts(ids), targets, loss_divisor, ignore_index)


TENSOR_PARALLEL: dict[type[Module], type[TensorParallel]] = {MLP: TensorParallelMLP,
                                                             GPT: TensorParallelGPT}


def parallelize(model: Module, tp: Communicator, sequence_parallel: bool = False,
                gather_again: bool = False, message_format: Format | None = None) -> Module:
    """Cut `model` over the ranks of `tp`, which all call it; return it, changed.

    Call it before `initialize` or after it.  `sequence_parallel` splits a GPT's tokens between the
    pairs of layers; with `gather_again`, their inputs are kept split and gathered once more in
    backward.  `message_format`: activations enter and leave the pairs as codes of it.  Raises
    ValueError for other models, and for sizes that the ranks cannot share.
    """
    if gather_again and not sequence_parallel:
        raise ValueError("gather_again needs sequence_parallel=True: else nothing is gathered")
    split: TensorSplit
    if message_format is None:
        split = (SequenceSplit if sequence_parallel else TensorSplit)(tp)
    else:
        split = (LowPrecisionSequenceSplit if sequence_parallel
                 else LowPrecisionTensorSplit)(tp, message_format)
    if type(model) not in TENSOR_PARALLEL or sequence_parallel and isinstance(model, MLP):
        raise ValueError("an MLP has no sequence to split: leave sequence_parallel off"
                         if isinstance(model, MLP) and sequence_parallel else
                         f"parallelize takes a plain MLP or GPT, not {type(model).__name__}: cut "
                         "other models with split_columns and split_rows")
    with weights_as_parameters(model):
        for parameter in model.parameters():
            parameter.replicated = (*parameter.replicated, AXIS)
        if isinstance(model, MLP):
            _split_mlp(model, split)
        elif isinstance(model, GPT):
            _split_gpt(model, split, gather_again)
    retype(model, TENSOR_PARALLEL[type(model)], split=split)
    if model.slabs:
        model.make_slabs(model.slabs[0].data)
    return model


def _split_mlp(model: MLP, split: TensorSplit) -> None:
    modules = list(model)
    layers = [(i, module) for i, module in enumerate(modules) if isinstance(module, Linear)]
    for (first, columns), (second, rows) in zip(layers[::2], layers[1::2]):
        width = columns.weight.shape[1]
        split_columns(columns, split)
        split_rows(rows, split)
        for module in modules[first:second]:
            if isinstance(module, Dropout):
                retype(module, PartialDropout, tp=split.tp, total=width)


def _split_feed_forward(mlp: Module, split: TensorSplit, gather_again: bool = False) -> None:
    """Cut a block's MLP: its first layers by columns, the last by rows."""
    columns = [mlp.c_fc, mlp.c_gate] if isinstance(mlp, GatedFeedForward) else [mlp.c_fc]
    for layer in columns:
        split_columns(layer, split)
        if gather_again:
            retype(layer, RegatheringColumnLinear)
    split_rows(mlp.c_proj, split)


def _split_moe(layer: MoE, split: TensorSplit) -> None:
    """Cut the experts of a block, each like an MLP; with sequence parallelism, gather its tokens.
    """
    inside = split
    if isinstance(split, SequenceSplit):
        inside = TensorSplit(split.tp)
        retype(layer, GatheringMoE, tp=split.tp)
    split_experts(layer.experts, inside)
    if layer.has_shared:
        _split_feed_forward(layer.shared, inside)


def _split_gpt(model: GPT, split: TensorSplit, gather_again: bool) -> None:
    for block in model.h:
        split_attention(block.attn, split)
        retype(block.attn.attn_dropout, PartialDropout, tp=split.tp, total=None)
        if gather_again:
            retype(block.attn.c_attn, RegatheringColumnLinear)
        if isinstance(block.mlp, MoE):
            _split_moe(block.mlp, split)
        else:
            _split_feed_forward(block.mlp, split, gather_again)
    split_vocabulary(model.wte, split)
    if not model.config.tied:
        split_columns(model.lm_head, split)
    if isinstance(split, SequenceSplit):
        for norm in [norm for block in model.h for norm in (block.ln_1, block.ln_2)] + [model.ln_f]:
            for parameter in norm.parameters():
                parameter.on_use(split.shared)
        for dropout in [model.drop, *[block.attn.resid_dropout for block in model.h],
                        *[block.mlp.dropout for block in model.h
                          if not isinstance(block.mlp, MoE)]]:
            retype(dropout, PartialDropout, tp=split.tp, total=None)
