"""Predict the cost of rematerialization under each strategy: messages, and a pipeline's memory.

    plan (0, (1, 2, 3), 4)           backward recomputes 1, 2 and 3, up to the last saved array
    weights, in order of use         0 1 2 3 4 │ 4  1 2 3  3 2 1

Backward uses the sharded weights of a segment twice.  FSDP keeps two units gathered at a time.  So
a segment of one block finds its weights gathered when its backward starts, and costs no message; a
segment of k blocks gathers k - 1 of them once more.  ZeRO-3 gathers each weight for each use.

Under tensor parallelism a recomputed block repeats its forward's messages: a layer has two, or four
halves under sequence parallelism.  The work after a segment's last saved array is not repeated.
Without dropout that includes its last all-reduce (reduce-scatter): segments of one block repeat 1
of 2 messages, or 3 of 4.

A stage of a pipeline keeps for each microbatch in flight the arrays that its segments keep, and for
one of them also the arrays that a segment recomputes.  Every part is assumed to save an array, its
dropout last.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from ..memory.remat.plans import Plan, parts_of
from ..parallel.pipeline.schedule.actions import BACKWARD, FORWARD, Action


def computed_again(plan: Plan) -> Iterator[tuple[int, bool]]:
    """(part, whether to its end) for each part that backward recomputes, in order."""
    return ((part, whole) for part, kind, whole in _backward(plan) if kind == "again")


def _backward(plan: Plan) -> Iterator[tuple[int, str, bool]]:
    """The steps of backward: (part, "again" or "back", whether to its end)."""
    for item in reversed(plan):
        if isinstance(item, int):
            yield item, "back", True
            continue
        for inner in item:
            is_last = inner == item[-1]
            if isinstance(inner, int):
                yield inner, "again", not is_last
            elif not is_last:                   # else its input, the last array, was saved
                yield from ((part, "again", True) for part in parts_of(inner))
        yield from _backward(item)


def unit_path(plan: Plan, forward: Sequence[Sequence], backward: Sequence[Sequence]) -> list:
    """The units of FSDP in the order in which forward and backward use them under `plan`.

    `forward[i]` and `backward[i]` are the units that part i uses, in their order.
    """
    uses = [unit for part in parts_of(plan) for unit in forward[part]]
    for part, kind, _ in _backward(plan):
        uses += forward[part] if kind == "again" else backward[part]
    return [unit for unit, _ in groupby(uses)]


def layer_messages(sequence: bool = False) -> int:
    """The number of tp collectives in the forward of a transformer layer."""
    return 4 if sequence else 2


def layer_messages_again(plan: Plan, is_block: Sequence[bool], dropout: bool = False,
                         sequence: bool = False) -> int:
    """The number of tp collectives that a plan repeats in the layers, the parts with `is_block`."""
    return sum(layer_messages(sequence) - (not whole and not dropout)
               for part, whole in computed_again(plan) if is_block[part])


def activations_of_row(row: Sequence[Action], kept: Mapping[int, int],
                       most: Mapping[int, int]) -> int:
    """Peak bytes of activations of a pipeline's rank with this row, which has no I and W.

    For each stage, `kept` are a microbatch's bytes from its forward to its backward, and `most` its
    peak during its backward.
    """
    live = peak = 0
    for kind, stage, _ in row:
        if kind == FORWARD:
            live += kept[stage]
            peak = max(peak, live)
        elif kind == BACKWARD:
            live -= kept[stage]
            peak = max(peak, live + most[stage])
        else:
            raise ValueError(f"a row of F and B was expected, not {kind}: what waits for W is more "
                             "than what was kept")
    return peak
