"""Make a plain MLP or GPT tensor-parallel; its own code does not change.

    model = parallelize(GPT(config), mesh["tp"]).initialize(seed=0)

Modules keep their names; those that now compute differently are replaced.  Parameters are cut: each
rank keeps its box of the global parameter.  Initial values are drawn by name and then cut, so they
are the same as in one process.  A slab is an array of many parameters.  The cut parameters go into
one slab, the replicated ones into another, which clipping counts once.

    GPT    wte, lm_head by vocabulary · attn by heads · mlp, or each expert, by columns and rows ·
           norms, wpe, routers replicated
    MLP    linear layers in pairs, columns and rows; the last one of an odd number is replicated
"""

from collections.abc import Callable

from ...autograd import Tensor
from ...backend import Array
from ...comm import Communicator
from ...comm.collectives import chunk_bounds
from ...nn import GPT, MLP, Dropout, Linear, Module, MoE
from ...nn.gpt import GatedFeedForward
from ...nn.module import replace_module
from ...number_formats import Format
from ..conjugate import gather_from
from .experts import gather_tokens, split_experts
from .layers import (
    AXIS,
    PartialDropout,
    TensorSplit,
    split_attention,
    split_columns,
    split_rows,
)
from .low_precision import LowPrecisionSequenceSplit, LowPrecisionTensorSplit
from .packed_weights import weights_as_parameters
from .sequence import SequenceSplit
from .vocabulary import VocabularyHead, VocabularyLoss, split_vocabulary


def parallelize(model: Module, tp: Communicator, sequence_parallel: bool = False,
                gather_again: bool = False, message_format: Format | None = None) -> Module:
    """Cut `model` over the ranks of `tp`, which all call this; return the changed model.

    Call it before `initialize` or after it.  `sequence_parallel` splits a GPT's tokens between the
    pairs of layers; with `gather_again`, their inputs are kept split and gathered once more in
    backward.  With `message_format` activations enter and leave the pairs as codes of that format.
    Raises ValueError for other models, and for sizes that the ranks cannot share.
    """
    if gather_again and not sequence_parallel:
        raise ValueError("gather_again needs sequence_parallel=True: else nothing is gathered")
    split: TensorSplit
    if message_format is None:
        split = (SequenceSplit if sequence_parallel else TensorSplit)(tp)
    else:
        split = (LowPrecisionSequenceSplit if sequence_parallel
                 else LowPrecisionTensorSplit)(tp, message_format)
    if isinstance(model, MLP) and sequence_parallel:
        raise ValueError("an MLP has no sequence to split: leave sequence_parallel off")
    return split_model(model, split, gather_again)


def split_model(model: Module, split: TensorSplit, gather_again: bool = False) -> Module:
    """Cut `model` as `parallelize` does, with a split of one's own."""
    if type(model) not in (MLP, GPT) or split_of(model):
        what = "one that is cut already" if split_of(model) else type(model).__name__
        raise ValueError(f"parallelize takes a plain MLP or GPT, not {what}: cut other models with "
                         "split_columns and split_rows")
    with weights_as_parameters(model):
        for parameter in model.parameters():
            parameter.replicated = (*parameter.replicated, AXIS)
        if isinstance(model, MLP):
            _split_mlp(model, split)
        elif isinstance(model, GPT):
            _split_gpt(model, split, split.regather if gather_again and isinstance(
                split, SequenceSplit) else None)
    vars(model)["split"] = split
    if model.slabs:
        model.make_slabs(model.slabs[0].data)
    return model


def split_of(model: Module) -> TensorSplit | None:
    """The split of a model that `parallelize` cut; None for others."""
    return vars(model).get("split")


def _split_mlp(model: MLP, split: TensorSplit) -> None:
    modules = list(model)
    layers = [(i, module) for i, module in enumerate(modules) if isinstance(module, Linear)]
    for (first, columns), (second, rows) in zip(layers[::2], layers[1::2]):
        width = columns._parameters["weight"].shape[1]
        split_columns(columns, split)
        replace_module(model, rows, split_rows(rows, split))
        for module in modules[first:second]:
            if isinstance(module, Dropout):
                replace_module(model, module, _part_of(module, split, width))


def _part_of(dropout: Dropout, split: TensorSplit, total: int | None = None) -> PartialDropout:
    return PartialDropout.replacing(dropout, tp=split.tp, total=total)


def _split_feed_forward(mlp: Module, split: TensorSplit,
                        around: Callable | None = None) -> None:
    """Cut a block's MLP: its first layers by columns, the last by rows."""
    for layer in [mlp.c_fc, mlp.c_gate] if isinstance(mlp, GatedFeedForward) else [mlp.c_fc]:
        split_columns(layer, split, around=around)
    mlp.c_proj = split_rows(mlp.c_proj, split)


def _split_moe(layer: MoE, split: TensorSplit) -> None:
    """Cut the experts of a block, each like an MLP; with sequence parallelism, gather its tokens.
    """
    inside = split
    if isinstance(split, SequenceSplit):
        inside = TensorSplit(split.tp)
        gather_tokens(layer, split.tp)
    split_experts(layer.experts, inside)
    if layer.has_shared:
        _split_feed_forward(layer.shared, inside)


def _split_gpt(model: GPT, split: TensorSplit, around: Callable | None) -> None:
    tp, vocab_size = split.tp, model.config.vocab_size
    for block in model.h:
        split_attention(block.attn, split, around)
        block.attn.attn_dropout = _part_of(block.attn.attn_dropout, split)
        if isinstance(block.mlp, MoE):
            _split_moe(block.mlp, split)
        else:
            _split_feed_forward(block.mlp, split, around)
    model.wte = split_vocabulary(model.wte, split)
    if model.config.tied:
        model.head = VocabularyHead.replacing(model.head, split=split)
    else:
        split_columns(model.lm_head, split)
    model.cross_entropy = VocabularyLoss.replacing(model.cross_entropy, tp=tp,
                                                   vocab_size=vocab_size)

    def whole_logits(forward: Callable, ids: Array, gather: bool = True) -> Tensor:
        logits = forward(ids, gather)
        return gather_from(logits, tp, -1, vocab_size) if gather else logits
    model.around(whole_logits, inside=True)
    if isinstance(split, SequenceSplit):
        _split_tokens(model, split)


def _split_tokens(model: GPT, split: SequenceSplit) -> None:
    """Let each rank have some tokens between the pairs of layers."""
    def check_divides(forward: Callable, ids: Array) -> Tensor:
        time, p = ids.shape[1], split.tp.size
        if time % p:
            raise ValueError(f"sequence parallelism splits {time} tokens over {p} ranks, which "
                             f"does not divide: pad them to {time + p - time % p}, or leave it off")
        return forward(ids)
    model.embed.around(check_divides, inside=True)
    model.embed.positions.around(lambda forward, places: forward(
        slice(*chunk_bounds(places.stop, split.tp.size)[split.tp.rank])), inside=True)
    used = [model.ln_f, *[norm for block in model.h for norm in (block.ln_1, block.ln_2)]]
    for module in used if model.config.rope else [model.wpe, *used]:
        for parameter in module.parameters():
            parameter.on_use(split.shared)
    model.drop = _part_of(model.drop, split)
    for block in model.h:
        block.attn.resid_dropout = _part_of(block.attn.resid_dropout, split)
        if not isinstance(block.mlp, MoE):
            block.mlp.dropout = _part_of(block.mlp.dropout, split)
