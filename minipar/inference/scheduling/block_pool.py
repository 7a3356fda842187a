"""The pool of blocks: which are free, how many sequences use each, which tokens each holds.

A block has room for the keys and values of `block_size` tokens.  This file knows numbers of
blocks only; `cache/` has the arrays.

    free queue   front ▶ 4 ▶ 7 ▶ 1 ▶ 0 ▶ back         blocks are taken at the front,
    ref counts   block   0  1  2  3  4  5  6  7        and released to the back
                 count   0  0  2  1  0  1  1  0        (2 is shared by two sequences)
    cached       key of a whole block → block          a block in the free queue keeps its
                                                       content, and its key, until it is taken

So the least recently released block is overwritten first.
Kwon et al. 2023 (PagedAttention), section 4.
"""

import hashlib
from collections import OrderedDict

import numpy as np


class OutOfBlocks(RuntimeError):
    """More blocks were asked for than are free."""


def blocks_for(num_tokens: int, block_size: int) -> int:
    """The number of blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)


def prefix_keys(tokens: list[int], block_size: int, salt: str = "") -> list[bytes]:
    """The key of each whole block of `tokens`: SHA-256 of the key before it and of its tokens.

    Equal keys mean equal tokens from the beginning on.  A different `salt` makes different keys,
    for contents that differ although the tokens are equal, such as those of another model.
    """
    keys, key = [], salt.encode()
    for end in range(block_size, len(tokens) + 1, block_size):
        block = np.array(tokens[end - block_size:end], "<i8")
        key = hashlib.sha256(key + block.tobytes()).digest()
        keys.append(key)
    return keys


class BlockPool:
    """Blocks 0 … num_blocks - 1, all free at first, of `block_size` tokens each."""

    def __init__(self, num_blocks: int, block_size: int):
        if num_blocks < 1 or block_size < 1:
            raise ValueError("a pool needs at least one block of at least one token, not "
                             f"{num_blocks} blocks of {block_size}")
        self.block_size = block_size
        self.ref_counts = [0] * num_blocks
        self.free = OrderedDict.fromkeys(range(num_blocks))
        self.block_of: dict[bytes, int] = {}        # key → block: the prefix cache
        self.key_of: dict[int, bytes] = {}          # block → key
        self.num_allocated = self.num_evicted = self.num_copied = 0

    @property
    def num_blocks(self) -> int:
        """The number of blocks there are, free or not."""
        return len(self.ref_counts)

    @property
    def num_used(self) -> int:
        """The number of blocks that at least one sequence uses."""
        return self.num_blocks - len(self.free)

    def require(self, num_blocks: int) -> None:
        """Raise OutOfBlocks unless `num_blocks` blocks are free."""
        if num_blocks > len(self.free):
            raise OutOfBlocks(f"{num_blocks} blocks are needed, and {len(self.free)} of "
                              f"{self.num_blocks} are free")

    def grow_to(self, num_free: int) -> None:
        """Append new blocks until `num_free` are free."""
        for block in range(self.num_blocks, self.num_blocks + num_free - len(self.free)):
            self.ref_counts.append(0)
            self.free[block] = None

    def allocate(self) -> int:
        """Take the block at the front of the free queue; the prefix cache forgets its content."""
        self.require(1)
        block, _ = self.free.popitem(last=False)
        self.ref_counts[block] = 1
        self.num_allocated += 1
        self.num_evicted += self.forget(block)
        return block

    def share(self, block: int) -> None:
        """Count one more user of a block.  A cached block leaves the free queue."""
        self.free.pop(block, None)
        self.ref_counts[block] += 1

    def release(self, block: int) -> bool:
        """Count one user less; return whether the block went to the back of the free queue."""
        if not self.ref_counts[block]:
            raise ValueError(f"block {block} is released, but no sequence uses it")
        self.ref_counts[block] -= 1
        if not self.ref_counts[block]:
            self.free[block] = None
        return not self.ref_counts[block]

    def register(self, block: int, key: bytes) -> None:
        """Remember what a whole block holds.  If a key has a cached block, that one stays."""
        if key not in self.block_of and block not in self.key_of:
            self.block_of[key], self.key_of[block] = block, key

    def forget(self, block: int) -> bool:
        """Remove a block from the prefix cache before overwriting it; return whether it was in."""
        key = self.key_of.pop(block, None)
        self.block_of.pop(key or b"", None)
        return key is not None

    def longest_prefix(self, keys: list[bytes]) -> list[int]:
        """The cached blocks of `keys`, up to the first key that is not cached."""
        blocks = []
        for key in keys:
            if key not in self.block_of:
                break
            blocks.append(self.block_of[key])
        return blocks
