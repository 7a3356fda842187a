"""Is this program's gradient right?  The types I, R, V, P of its values, inferred and checked.

    x: I ─▶ copy_to ─▶ R ─┐
                          ├─▶ linear ─▶ V ─▶ … ─▶ P ─▶ reduce_from ─▶ I        accepted
    w: V ─────────────────┘
    x: I ─────────────────┬─▶ linear                                           refused: dx would
    w: V ─────────────────┘                                   lack what other ranks contribute

A loss remembers how it was made.  Before its backward the graph is walked once, from parameters to
the loss, and every value gets a type for the ranks of one communicator:

    a collective            takes and gives what `conjugate.py` says; a reduction
                            also takes V, as it may sum what differs from rank to rank
    all inputs I            I
    all inputs R            R
    R and V                 V
    I beside an R or a V    refused: each rank uses the I in its own way, so it needs copy_to first
    P                       P, if it is only added to a P, summed, moved, cast, or multiplied by a
                            constant; else refused
    a layer cut by rows     P, as for an embedding cut by rows; a bias may only be added to the sum
    the loss                I, or V or P (a share of it); an R would count p times

A program that does not call the check pays nothing for it.  The types are as in JAX's shard_map and
DTensor's placements, with R and I told apart as Megatron's f needs it.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ..autograd import Tensor
from ..autograd.engine import backward_order
from ..autograd.ops import elementwise as ew
from ..autograd.ops import movement as mv
from ..autograd.ops.matmul import Linear, MatMul
from ..autograd.ops.reductions import Sum
from ..autograd.tensor import GradientSlot, GradTarget, Node
from ..comm import Communicator
from ..nn import Parameter
from . import conjugate as pairs
from .context.attention import ContextAttention
from .context.rank_groups import CutTokens, GatherTokens
from .context.ulysses import ToHeads, ToTokens
from .expert.exchange import ReturnRows, SendRows
from .tensor.vocabulary import PartialEmbedding, VocabularyCrossEntropy

COLLECTIVES = {         # operation: types that it takes, type that it gives
    pairs.CopyTo: ("I", "R"), pairs.ReduceFrom: ("PV", "I"), pairs.ScatterTo: ("I", "V"),
    pairs.GatherFrom: ("V", "I"), pairs.AllGather: ("V", "R"), pairs.ReduceScatter: ("PV", "V"),
    pairs.AllToAll: ("V", "V"), VocabularyCrossEntropy: ("V", "I"), SendRows: ("V", "V"),
    ReturnRows: ("V", "V"), ContextAttention: ("V", "V"), ToHeads: ("V", "V"),
    ToTokens: ("V", "V"), CutTokens: ("I", "V"), GatherTokens: ("V", "I"),
}
ADDING = {ew.Add, ew.Subtract, ew.AsType, Sum, mv.Reshape, mv.Transpose, mv.GetItem,
          mv.BroadcastTo, mv.Concatenate}
ROW_CUT_INPUT = {Linear: 1, MatMul: 1, PartialEmbedding: 0}     # the input that may be cut by rows
WIDENING = "IRV"        # where inputs differ in type, the result gets the one that comes last here
MEANING = {"I": "the same on every rank", "R": "the same but used by each rank in its own way",
           "V": "different on every rank", "P": "a share of a sum over the ranks"}
MEND = {                # by (what a collective takes, what came)
    ("I", "R"): "it is a copy already: leave this one out",
    ("I", "V"): "ranks do not share it: leave this out, or gather_from it first",
    ("I", "P"): "reduce_from it first",
    ("V", "I"): "every rank has all of it already: leave this out",
    ("V", "R"): "every rank has all of it already: leave this out",
    ("V", "P"): "reduce_scatter it first",
    ("PV", "I"): "it would be summed twice, p times too large: leave this out",
    ("PV", "R"): "the sum would be p times too large: leave this out",
}


def check_types(loss: Tensor, comm: Communicator, parameters: Mapping[str, Tensor],
                varying: Collection[str] = (), data: str = "I") -> str:
    """The type of `loss` for the ranks of `comm`: I, V or P.  Call it before the loss's backward.

    The `parameters` whose names are in `varying` are cut over the ranks (V); all others are the
    same on every rank (I).  `data` is the type of what takes no gradient: "V" where the ranks split
    a batch.  Raises TypeError, naming the operation and the mend, where the gradients of such a
    program would be wrong, and for a loss without a graph.
    """
    if loss.grad_target is None:
        raise TypeError("this loss has no graph to check: nothing in it needs a gradient")
    names = {parameter.grad_target: name for name, parameter in parameters.items()
             if parameter.grad_target is not None}
    types: dict[GradTarget, str] = {}
    for target in reversed([*backward_order(loss.grad_target)]):
        if isinstance(target, GradientSlot):
            types[target] = "V" if names.get(target) in varying else "I"
        else:
            name = _row_cut_name(target, names)
            by_rows = name is not None and name in varying and _is_cut_by_rows(parameters[name])
            types[target] = _type_of(target, types, names, comm, data, by_rows)
    kind = types[loss.grad_target]
    if kind == "R":
        raise TypeError(f"the loss is R, {MEANING['R']}: its gradients would be {comm.size} times "
                        "too large: gather_from instead of all_gather, reduce_from before the loss")
    return kind


def _type_of(node: Node, types: Mapping[GradTarget, str], names: Mapping[GradTarget, str],
             comm: Communicator, data: str, by_rows: bool) -> str:
    operation, name = node.function, node.function.__name__
    inputs = [target for target in node.inputs if target is not None]
    kinds = [types[target] for target in inputs]

    def describe(kind: str) -> str:
        at = kinds.index(kind)
        if at == len(inputs):
            return f"the data is {kind}, {MEANING[kind]}"
        target = inputs[at]
        made = names.get(target) or (f"the result of {target.function.__name__}"
                                     if isinstance(target, Node) else "a leaf")
        return f"{made} is {kind}, {MEANING[kind]}"

    if operation in COLLECTIVES and node.ctx.comm is comm:
        takes, gives = COLLECTIVES[operation]
        if kinds[0] not in takes:
            raise TypeError(f"{name} takes {' or '.join(takes)}, but {describe(kinds[0])}: "
                            f"{MEND[takes, kinds[0]]}")
        return gives
    if data == "V" and not node.weight_only and all(target.weight_only for target in inputs):
        kinds.append(data)                          # the other input is data
    if "P" in kinds:
        if set(kinds) != {"P"} or not _keeps_a_sum(node):
            raise TypeError(f"{name} before the sum: {describe('P')}: reduce_from or "
                            "reduce_scatter it first")
        return "P"
    if "I" in kinds and set(kinds) != {"I"}:
        other = "V" if "V" in kinds else "R"
        raise TypeError(f"{name}: {describe('I')}, but {describe(other)}: the gradient of the "
                        "first would lack what other ranks contribute: copy_to it before this use")
    if by_rows and operation is Linear and node.ctx.has_bias:
        raise TypeError(f"{name}: its weight is cut by rows, so each of the {comm.size} ranks "
                        "would add the bias: reduce_from the product, and add the bias to the sum")
    return "P" if by_rows else max(kinds, key=WIDENING.index)


def _keeps_a_sum(node: Node) -> bool:
    """True if f(Σ Pᵣ) = Σ f(Pᵣ) for this operation; an input that is None is a constant."""
    first, *others = node.inputs
    if node.function is ew.Multiply:
        return [first, *others].count(None) == 1                # c P or P c
    if node.function is ew.Divide:
        return first is not None and others == [None]           # P / c
    return node.function in ADDING and None not in node.inputs  # not P + c


def _row_cut_name(node: Node, names: Mapping[GradTarget, str]) -> str | None:
    """The name of the parameter that this operation could use cut by rows, or None."""
    index = ROW_CUT_INPUT.get(node.function)
    weight = None if index is None else node.inputs[index]
    return None if weight is None else names.get(weight)


def _is_cut_by_rows(parameter: Any) -> bool:
    return isinstance(parameter, Parameter) and parameter.box[0] != (0, parameter.global_shape[0])
