"""What rematerialization costs beside each strategy, on paper: messages, and bytes of a pipeline.

    plan (0, (1, 2, 3), 4)      segments compute again: 1 2 and 3, as far as to its last saved array
    weights, in their order     0 1 2 3 4 │ 4  1 2 3  3 2 1

Sharded weights are used twice in backward.  FSDP has two units at a time: a segment of one block
finds its weights there when its backward comes, and costs no message; one of k blocks gathers k - 1
of them once more.  ZeRO-3 gathers each weight for each use.  Under tensor parallelism a block that
is computed again repeats its forward's messages, of which a layer has two (sequence parallelism:
four halves); but what follows the last saved array of a segment is not repeated.  Without dropout
that is its last all-reduce (reduce-scatter): 1 of 2, or 3 of 4, for segments of one block.

A stage of a pipeline keeps of each microbatch in flight what its segments keep, and of one of them
also what a segment computes again.  (Every part is assumed to save something, its dropout last.)
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from ..memory.remat.plans import Plan, parts_of
from ..parallel.pipeline.schedule.actions import BACKWARD, FORWARD, Action


def computed_again(plan: Plan) -> Iterator[tuple[int, bool]]:
    """(part, whether to its end) of all that backward computes again, in its order."""
    return ((part, whole) for part, kind, whole in _backward(plan) if kind == "again")


def _backward(plan: Plan) -> Iterator[tuple[int, str, bool]]:
    """(part, "again" or "back", whether to its end): the steps of backward."""
    for item in reversed(plan):
        if isinstance(item, int):
            yield item, "back", True
            continue
        for inner in item:
            is_last = inner == item[-1]
            if isinstance(inner, int):
                yield inner, "again", not is_last
            elif not is_last:                   # else its input, the last array, is there already
                yield from ((part, "again", True) for part in parts_of(inner))
        yield from _backward(item)


def unit_path(plan: Plan, forward: Sequence[Sequence], backward: Sequence[Sequence]) -> list:
    """The units of FSDP in the order of their use in a forward and backward by `plan`.

    `forward[i]` and `backward[i]` are those that part i uses, in their order.
    """
    uses = [unit for part in parts_of(plan) for unit in forward[part]]
    for part, kind, _ in _backward(plan):
        uses += forward[part] if kind == "again" else backward[part]
    return [unit for unit, _ in groupby(uses)]


def layer_messages(sequence: bool = False) -> int:
    """Collectives of tp in the forward of a transformer layer."""
    return 4 if sequence else 2


def layer_messages_again(plan: Plan, is_block: Sequence[bool], dropout: bool = False,
                         sequence: bool = False) -> int:
    """Collectives of tp that a plan repeats in the layers, those parts of which `is_block`."""
    return sum(layer_messages(sequence) - (not whole and not dropout)
               for part, whole in computed_again(plan) if is_block[part])


def activations_of_row(row: Sequence[Action], kept: Mapping[int, int],
                       most: Mapping[int, int]) -> int:
    """Peak bytes of activations of a rank of a pipeline that has this row, without I and W.

    Of each of its stages: `kept`, from a microbatch's forward to its backward, and `most`, what
    that microbatch has at most in its backward.
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
