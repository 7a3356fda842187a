"""Fragmentation: how much of a cache holds tokens, with a stretch for each request or with blocks.

    max     a stretch for the longest sequence that is allowed
    pow2    a stretch for the prompt, and the output rounded up to a power of two
    oracle  a stretch of exactly the slots that the request needs in the end, as if that were known
    blocks  blocks for the tokens so far, more on demand

    pool  │▇▇▇▇▇▇▇▇▒▒▒▒░░░░░░······│▇▇▇▒▒░░···│     one moment, several requests
           token   │   internal: this request never uses it
                   reserved: this request uses it later     · external: no request asked for it

Stretches come from a buddy allocator: sizes are rounded up to a power of two, and aligned to it.
The slots that rounding adds are external, and so is all room between stretches.
Kwon et al. 2023, figures 2 and 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .block_pool import blocks_for

CONTIGUOUS = ("max", "pow2", "oracle")


@dataclass(frozen=True)
class CachedRequest:
    """A request at one moment: tokens of its prompt, of its whole output, of its output so far."""

    name: str
    prompt: int
    output_in_the_end: int
    generated_so_far: int

    @property
    def num_tokens(self) -> int:
        """Tokens that are in the cache."""
        return self.prompt + self.generated_so_far

    @property
    def final_tokens(self) -> int:
        """Tokens that will be in the cache in the end."""
        return self.prompt + self.output_in_the_end


class Stretch(NamedTuple):
    """Slots start … start + buddy_size - 1; `asked` of them were asked for."""

    start: int
    buddy_size: int
    asked: int


@dataclass
class PoolLayout:
    """A pool of `num_slots` slots: what they hold, and which requests wait for room."""

    num_slots: int
    token: int = 0              # slots that hold a token
    reserved: int = 0           # slots of a stretch that its request will use later
    internal: int = 0           # of a stretch: never used by its request; of a block: not used yet
    external: int = 0           # slots nobody asked for: beside stretches, behind the last block
    free: int = 0               # slots of free blocks
    placed: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    stretches: dict[str, Stretch] = field(default_factory=dict)     # of contiguous layouts
    num_blocks: dict[str, int] = field(default_factory=dict)        # of blocks

    def percent(self) -> dict[str, float]:
        """The five kinds of slots, in % of the pool."""
        parts = {"token": self.token, "reserved": self.reserved, "internal": self.internal,
                 "external": self.external, "free": self.free}
        return {name: 100 * slots / self.num_slots for name, slots in parts.items()}

    @property
    def waste(self) -> float:
        """Of the slots that are not free, the share without a token; 0 without requests."""
        return 1 - self.token / (self.num_slots - self.free) if self.placed else 0.0


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()


class BuddyAllocator:
    """Cuts stretches out of `num_slots` slots, each at the lowest address that is free.

    Sizes are rounded up to powers of two.
    """

    def __init__(self, num_slots: int):
        self.num_slots = num_slots
        self.taken: list[Stretch] = []

    def allocate(self, asked: int) -> Stretch | None:
        """Take a stretch of at least `asked` slots; None if there is none."""
        size = power_of_two(asked)
        for start in range(0, self.num_slots - size + 1, size):
            if all(start + size <= other.start or other.start + other.buddy_size <= start
                   for other in self.taken):
                self.taken.append(Stretch(start, size, asked))
                return self.taken[-1]
        return None


def slots_asked(request: CachedRequest, policy: str, longest: int) -> int:
    """The number of slots that a request asks for when it arrives."""
    if policy == "max":
        return longest
    if policy == "pow2":
        return request.prompt + power_of_two(request.output_in_the_end)
    if policy == "oracle":
        return request.final_tokens
    raise ValueError(f"unknown layout {policy!r}: choose from {', '.join(CONTIGUOUS)}")


def contiguous_layout(requests: Sequence[CachedRequest], policy: str, num_slots: int,
                      longest: int) -> PoolLayout:
    """A stretch of slots for each request, in order; those that do not fit wait."""
    layout, allocator = PoolLayout(num_slots), BuddyAllocator(num_slots)
    for request in requests:
        stretch = allocator.allocate(slots_asked(request, policy, longest))
        if stretch is None:
            layout.waiting.append(request.name)
            continue
        layout.placed.append(request.name)
        layout.stretches[request.name] = stretch
        layout.token += request.num_tokens
        layout.reserved += request.final_tokens - request.num_tokens
        layout.internal += stretch.asked - request.final_tokens
    layout.external = num_slots - layout.token - layout.reserved - layout.internal
    return layout


def block_layout(requests: Sequence[CachedRequest], num_slots: int, block_size: int) -> PoolLayout:
    """Blocks for the tokens that each request has so far; those that do not fit wait."""
    layout, num_free = PoolLayout(num_slots), num_slots // block_size
    for request in requests:
        num_blocks = blocks_for(request.num_tokens, block_size)
        if num_blocks > num_free:
            layout.waiting.append(request.name)
            continue
        num_free -= num_blocks
        layout.placed.append(request.name)
        layout.num_blocks[request.name] = num_blocks
        layout.token += request.num_tokens
        layout.internal += num_blocks * block_size - request.num_tokens
    layout.free = num_free * block_size
    layout.external = num_slots - layout.token - layout.internal - layout.free
    return layout


def compare_layouts(requests: Sequence[CachedRequest], num_slots: int, longest: int,
                    block_size: int = 16) -> dict[str, PoolLayout]:
    """The same moment in every layout.  Raises ValueError for a request that is too long."""
    too_long = [request.name for request in requests if request.final_tokens > longest]
    if too_long:
        raise ValueError(f"requests {', '.join(too_long)} are longer than the longest sequence of "
                         f"{longest} tokens: shorten them, or raise `longest`")
    found = {policy: contiguous_layout(requests, policy, num_slots, longest)
             for policy in CONTIGUOUS}
    return {**found, "blocks": block_layout(requests, num_slots, block_size)}
