"""Bytes that a rank of a pipeline sends and keeps, on paper: FSDP in its stages, recomputation.

    row       F0      F1      B0      F2      B1      …     one rank's, of any schedule
    path      a b c   a b c   c b     a b c   c b           units in the order of their use: a has
    gathers   a b c   a b c     b     a b c     b           no weight that its backward needs, and
    reduces                   c b a           c b a         two units are gathered at a time

With m microbatches of a stage of Ψ parameters, FSDP sends at most 3 m Ψ (dp-1)/dp elements,
whatever the schedule.  The functions count the elements that rings send, exactly.

With recomputation, a stage keeps for each microbatch in flight the arrays that its segments keep.
For one of them it also keeps the arrays that a segment recomputes.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from minipar.memory.remat.plans import Plan, parts_of
from minipar.parallel.cost.data_parallel import (
    all_gather_elements,
    all_reduce_elements,
    chunk_lengths,
    gathers,
    peak_whole_gradients,
    reduce_scatter_elements,
)
from minipar.parallel.cost.rematerialization import backward_steps
from minipar.parallel.pipeline.schedule.actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action

Uses = Mapping[int, Sequence[str]]      # for each stage the names of its units


def path_of(row: Sequence[Action], forward: Uses, backward: Uses) -> list[str]:
    """The units that a row uses, in order; a unit that is used twice in succession once.

    `forward` and `backward` are the units that each stage uses, in their order of use.
    """
    uses = {FORWARD: forward, BACKWARD: backward, INPUT: backward}
    path = [unit for action in row if action.kind in uses
            for unit in uses[action.kind][action.stage]]
    return [unit for unit, _ in groupby(path)]


def bytes_over_dp(row: Sequence[Action], forward: Uses, backward: Uses,
                  sizes: Mapping[str, Sequence[int]], dp: int, itemsize: int = 4) -> list[int]:
    """Bytes that each of `dp` ranks with this row sends to the others in a batch.

    Control messages are not counted.  `sizes[unit]` are the elements of its runs: one run, or two
    under tp.
    """
    sent = np.zeros(dp, np.int64)
    for unit in gathers(path_of(row, forward, backward)):
        sent += sum(all_gather_elements(chunk_lengths(n, dp)) for n in sizes[unit])
    for action in row:
        if action.kind in (BACKWARD, WEIGHT):
            sent += sum(reduce_scatter_elements(chunk_lengths(n, dp))
                        for unit in {*forward[action.stage]} for n in sizes[unit])
    return (sent * itemsize).tolist()


def bytes_of_shared(size: int, dp: int, holders: int, itemsize: int = 4) -> np.ndarray:
    """Bytes that ranks send in a batch to sum the gradient of a tied weight: (dp, holders).

    Each rank of dp sums its piece with the other stages that have the weight.
    """
    return itemsize * np.array([all_reduce_elements(n, holders) for n in chunk_lengths(size, dp)])


def memory_of_row(row: Sequence[Action], forward: Uses, backward: Uses,
                  sizes: Mapping[str, Sequence[int]], dp: int, rank: int, itemsize: int = 4,
                  num_states: int = 2) -> dict[str, int]:
    """Peak bytes by the ledger's kinds, without activations, of one rank of dp.

    They are the pieces of all units, the largest whole gradients of a microbatch at one time, and
    two gathered units that follow one another.  `num_states`: Adam has 2, SGD 0 or 1.
    """
    psi = {unit: sum(runs) for unit, runs in sizes.items()}
    pieces = sum(chunk_lengths(n, dp)[rank] for runs in sizes.values() for n in runs)
    path = path_of(row, forward, backward)
    pairs = [sum(psi[unit] for unit in {*pair}) for pair in zip(path, path[1:] or path)]
    whole = max(peak_whole_gradients(uses, psi) for uses in forward.values() if uses)
    return {"parameters": pieces * itemsize, "gradients": (pieces + whole) * itemsize,
            "optimizer states": num_states * pieces * itemsize,
            "communication": max(pairs) * itemsize}


def unit_path(plan: Plan, forward: Sequence[Sequence], backward: Sequence[Sequence]) -> list:
    """The units of FSDP in the order in which forward and backward use them under `plan`.

    `forward[i]` and `backward[i]` are the units that part i uses, in their order.
    """
    uses = [unit for part in parts_of(plan) for unit in forward[part]]
    for part, kind, _ in backward_steps(plan):
        uses += forward[part] if kind == "again" else backward[part]
    return [unit for unit, _ in groupby(uses)]


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
