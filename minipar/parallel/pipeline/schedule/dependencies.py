"""The dependencies between actions: the only rule that a schedule must obey.

    stage s - 1          stage s          stage s + 1         B is I and W in one: other actions
                                                              wait for its I, or its W.
         F  ───────────▶  F  ───────────▶  F
                          │
         I  ◀───────────  I  ◀───────────  I                  ─▶ a message, if the stages are on
                          │                                      different ranks
                          W

Validation, simulation and the messages (p2p.py) follow from `needs`, the last two also from `sent`.
"""

from collections.abc import Sequence

from .actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    WEIGHT,
    Action,
    Placement,
    Together,
    TwoWay,
)

Op = tuple[str, int, int]       # kind (F, I or W), stage, microbatch: equal to an Action
OPS = {FORWARD: (FORWARD,), BACKWARD: (INPUT, WEIGHT), INPUT: (INPUT,), WEIGHT: (WEIGHT,)}


def needs(action: Action, num_stages: int) -> list[Op]:
    """The ops that must be done before `action`: its own stage's first, then a neighbour's."""
    kind, stage, i = action
    if kind == FORWARD:
        return [(FORWARD, stage - 1, i)] if stage else []
    if kind == WEIGHT:
        return [(INPUT, stage, i)]
    own = (FORWARD, stage, i)
    return [own, (INPUT, stage + 1, i)] if stage + 1 < num_stages else [own]


def sent(action: Action, num_stages: int) -> tuple[Op, int] | None:
    """The op of `action` that another stage needs, and that stage; None if no stage does."""
    kind, stage, i = action
    if kind == FORWARD and stage + 1 < num_stages:
        return (FORWARD, stage, i), stage + 1
    if kind in (INPUT, BACKWARD) and stage:
        return (INPUT, stage, i), stage - 1
    return None


def rank_of(placement: Placement, stage: int, microbatch: int) -> int:
    """The rank that computes a microbatch on a stage."""
    return placement[-1 - stage] if is_other_way(placement, microbatch) else placement[stage]


def is_other_way(placement: Placement, microbatch: int) -> bool:
    """True if the microbatch goes through the ranks the other way round."""
    return isinstance(placement, TwoWay) and microbatch in placement.other


def cells(row: Sequence[Action]) -> list[tuple[Action, ...]]:
    """The actions that follow one another; a tuple holds one action, or a pair."""
    found: list[tuple[Action, ...]] = []
    together = False
    for action in row:
        if together:
            found[-1] += (action,)
        else:
            found.append((action,))
        together = isinstance(action, Together)
    return found
