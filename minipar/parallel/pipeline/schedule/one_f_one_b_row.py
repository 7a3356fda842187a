"""The order of 1F1B: some forwards ahead, then a backward after every forward.

    3 ranks, 4 microbatches      warm-up │ steady            │ drain

    stage 0                      F0 F1   │ F2 B0 F3 B1       │ B2 B3
    stage 1                      F0      │ F1 B0 F2 B1 F3 B2 │ B3
    stage 2                              │ F0 B0 … F3 B3     │

Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
"""

from collections.abc import Sequence

from .actions import BACKWARD, FORWARD, Action


def one_f_one_b_row(stage: int, num_stages: int, num_microbatches: int) -> list[Action]:
    """The actions of a stage under 1F1B, in order."""
    forwards, backwards = ([Action(kind, stage, i) for i in range(num_microbatches)]
                           for kind in (FORWARD, BACKWARD))
    return alternate(forwards, backwards, ahead=num_stages - stage - 1)


def alternate(forwards: Sequence[Action], backwards: Sequence[Action], ahead: int) -> list[Action]:
    """The first `ahead` forwards, then a backward after every forward, then the last backwards."""
    ahead = min(ahead, len(forwards))
    row = [*forwards[:ahead]]
    for pair in zip(forwards[ahead:], backwards):
        row += pair
    return row + [*backwards[len(forwards) - ahead:]]
