"""One step of the scheduler: the tokens that each request computes, and the blocks that move."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from .request import Request


class Scheduled(NamedTuple):
    """`num_tokens` tokens of each sequence of a request, from position `start` on."""

    request: Request
    start: int
    num_tokens: int
    num_sequences: int


@dataclass
class ScheduledStep:
    """One step.  The cache must swap out, swap in and copy, in this order, before it writes."""

    index: int
    scheduled: list[Scheduled] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)
    hits: list[tuple[str, list[int]]] = field(default_factory=list)
    allocated: list[tuple[str, int]] = field(default_factory=list)      # sequence, block
    swapped_out: list[tuple[int, int]] = field(default_factory=list)    # block, host block
    swapped_in: list[tuple[int, int]] = field(default_factory=list)     # host block, block
    copied: list[tuple[int, int]] = field(default_factory=list)         # from block, to block
    freed: list[int] = field(default_factory=list)
    tables: dict[str, list[int]] = field(default_factory=dict)          # before freeing
    slots: int = 0                      # of the blocks in use, before freeing
    filled: int = 0                     # slots that hold a token
    num_free: int = 0                   # blocks, after freeing

    def record_usage(self, running: Iterable[Request], block_size: int) -> None:
        """Note the tables of `running`, and how many slots of their blocks hold a token."""
        filled: dict[int, int] = {}
        for sequence in (each for request in running for each in request.sequences):
            self.tables[sequence.name] = list(sequence.table)
            for i, block in enumerate(sequence.table):
                tokens = min(block_size, sequence.num_computed - i * block_size)
                filled[block] = max(filled.get(block, 0), tokens)
        self.slots, self.filled = block_size * len(filled), sum(filled.values())
