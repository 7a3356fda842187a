"""The sizes and rules of a scheduler, and its refusal of a request that could never run."""

from dataclasses import dataclass

POLICIES = ("token_budget", "prompts_first", "static")
PREEMPT_BY = ("recompute", "swap")


class RequestTooLarge(ValueError):
    """A request that could never run, refused when it comes; `figures` says by which numbers."""

    def __init__(self, message: str, **figures: int):
        super().__init__(message)
        self.figures = figures


@dataclass(frozen=True)
class SchedulerConfig:
    """Sizes and rules of a scheduler.  None: no limit.

    policy: token_budget (prompts in chunks beside decoding), prompts_first (a step holds prompts
    or single tokens, never both) or static (the next batch begins when the last one has ended).
    """

    num_blocks: int
    block_size: int = 16
    token_budget: int | None = None         # tokens that one step computes at most
    max_requests: int | None = None         # that run at the same time
    prefix_caching: bool = False
    preempt_by: str = "recompute"
    policy: str = "token_budget"

    def __post_init__(self):
        for name in ("num_blocks", "block_size", "token_budget", "max_requests"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        for name, values in (("preempt_by", PREEMPT_BY), ("policy", POLICIES)):
            if getattr(self, name) not in values:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}: choose from "
                                 f"{', '.join(values)}")
