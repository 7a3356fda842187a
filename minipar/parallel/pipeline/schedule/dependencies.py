"""What an action waits for, and what it gives: all that schedules have to obey.

    stage s - 1          stage s          stage s + 1         B does both I and W: they are its
                                                              parts, and what others wait for.
         F  ───────────▶  F  ───────────▶  F
                          │
         I  ◀───────────  I  ◀───────────  I                  ─▶ a message, if the stages are on
                          │                                      different ranks
                          W

Validation, simulation and execution of schedules all ask here.
"""

from .actions import BACKWARD, FORWARD, INPUT, WEIGHT, Action

Op = tuple[str, int, int]     # kind (F, I or W), stage, microbatch: equal to an Action
OPS = {FORWARD: (FORWARD,), BACKWARD: (INPUT, WEIGHT), INPUT: (INPUT,), WEIGHT: (WEIGHT,)}


def needs(action: Action, num_stages: int) -> list[Op]:
    """What must be done before `action`: what its own stage does first, then its neighbour."""
    kind, stage, i = action
    if kind == FORWARD:
        return [(FORWARD, stage - 1, i)] if stage else []
    if kind == WEIGHT:
        return [(INPUT, stage, i)]
    own = (FORWARD, stage, i)
    return [own, (INPUT, stage + 1, i)] if stage + 1 < num_stages else [own]


def sent(action: Action, num_stages: int) -> tuple[Op, int] | None:
    """The part of `action` that another stage needs, and that stage; None if there is none."""
    kind, stage, i = action
    if kind == FORWARD and stage + 1 < num_stages:
        return (FORWARD, stage, i), stage + 1
    if kind in (INPUT, BACKWARD) and stage:
        return (INPUT, stage, i), stage - 1
    return None
