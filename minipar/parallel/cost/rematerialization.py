"""Predict the messages of rematerialization under each strategy.

    plan (0, (1, 2, 3), 4)           backward recomputes 1, 2 and 3, up to the last saved array
    weights, in order of use         0 1 2 3 4 │ 4  1 2 3  3 2 1

Backward uses the weights of a segment twice: to recompute it, and for its gradients.  FSDP keeps
two units gathered at a time.  So a segment of one block finds its weights gathered when its
backward starts, and costs no more messages than without recomputation.  A segment of k blocks
gathers k - 1 of them once more.  ZeRO-3 gathers each weight for each use.

Under tensor parallelism a recomputed block repeats the messages of its forward: two all-reduces,
or, under sequence parallelism, four all-gathers and reduce-scatters.  The work after a segment's
last saved array is not repeated.  Without dropout, that work includes the segment's last all-reduce
(or reduce-scatter).  So a segment of one block repeats 1 of 2 messages, or 3 of 4.  The formulas
assume that every part saves an array, and that its dropout saves last.
"""

from collections.abc import Iterator, Sequence

from ...memory.remat.plans import Plan, parts_of


def computed_again(plan: Plan) -> Iterator[tuple[int, bool]]:
    """(part, True if recomputed to its end) for each part that backward recomputes, in order."""
    return ((part, whole) for part, kind, whole in backward_steps(plan) if kind == "again")


def backward_steps(plan: Plan) -> Iterator[tuple[int, str, bool]]:
    """The steps of backward: (part, "again" to recompute or "back" for its backward, to its end).

    The third value is False for the last part of a segment: it stops after its last saved array.
    """
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
        yield from backward_steps(item)


def layer_messages(sequence: bool = False) -> int:
    """The number of tp collectives in the forward of a transformer layer."""
    return 4 if sequence else 2


def layer_messages_again(plan: Plan, is_block: Sequence[bool], dropout: bool = False,
                         sequence: bool = False) -> int:
    """The number of tp collectives that a plan repeats in the layers: the parts with `is_block`."""
    return sum(layer_messages(sequence) - (not whole and not dropout)
               for part, whole in computed_again(plan) if is_block[part])
