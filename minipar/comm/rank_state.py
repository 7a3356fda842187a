"""The state that all communicators of a rank share, in both worlds: `comm.rank_state`."""

from typing import Any

from .trace import Trace


class RankState:
    """A rank: its number in the world, its Works and its trace."""

    __slots__ = ("world_rank", "engine", "trace", "messages", "actions")

    world_rank: int
    engine: Any                     # runs non-blocking collectives, if any (see work.py)
    trace: Trace | None             # None while not tracing
    messages: list[tuple] | None    # those of the trace
    actions: list[tuple] | None     # the rank's program, if the trace keeps it

    def __init__(self, world_rank: int, trace: Trace | None = None):
        self.world_rank, self.engine = world_rank, None
        self.log_to(trace)

    def start_trace(self, group: int, replay: bool) -> None:
        """Log from now on; with `replay` also the program, which begins in `group`."""
        self.log_to(Trace(programs={self.world_rank: [("world", group)]} if replay else {}))

    def log_to(self, trace: Trace | None) -> None:
        """Log events to `trace` from now on; to nothing, if it is None."""
        self.trace = trace
        self.messages = trace.messages if trace is not None else None
        self.actions = trace.programs.get(self.world_rank) if trace is not None else None

    def log(self, *action: Any) -> int | None:
        """Add to the program, if it is logged; return the index of the action."""
        if self.actions is None:
            return None
        self.actions.append(action)
        return len(self.actions) - 1
