"""The sizes and rules of a scheduler, and its refusal of a request that could never run."""

from dataclasses import dataclass
from enum import StrEnum


class Policy(StrEnum):
    """The rule by which requests share a step.  The Scheduler reads it."""

    TOKEN_BUDGET = "token_budget"       # prompts in chunks beside decoding
    # A step has either prompts or single tokens.  It mixes them only for a recomputed request of
    # more than token_budget tokens, whose rest is computed beside single tokens.
    PROMPTS_FIRST = "prompts_first"
    STATIC = "static"                   # the next batch begins when the last one has ended


class Preemption(StrEnum):
    """The fate of a preempted request's keys and values."""

    RECOMPUTE = "recompute"             # they are lost, and computed again
    SWAP = "swap"                       # to the host, and back


class RequestTooLarge(ValueError):
    """The refusal of a request that could never run; `figures` are the numbers that show why."""

    def __init__(self, message: str, **figures: int):
        super().__init__(message)
        self.figures = figures


@dataclass(frozen=True)
class SchedulerConfig:
    """Sizes and rules of a scheduler.  None: no limit.

    `policy` and `preempt_by` may be given as strings.  Raises ValueError for an unknown one.
    """

    num_blocks: int
    block_size: int = 16
    token_budget: int | None = None         # tokens that one step computes at most
    max_requests: int | None = None         # that run at the same time
    prefix_caching: bool = False
    preempt_by: Preemption = Preemption.RECOMPUTE       # several sequences are always swapped
    policy: Policy = Policy.TOKEN_BUDGET

    def __post_init__(self):
        for name in ("num_blocks", "block_size", "token_budget", "max_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        for name, kind in (("preempt_by", Preemption), ("policy", Policy)):
            value = getattr(self, name)
            if value not in list(kind):
                raise ValueError(f"unknown {name} {value!r}: choose from {', '.join(kind)}")
            object.__setattr__(self, name, kind(value))     # the dataclass is frozen
