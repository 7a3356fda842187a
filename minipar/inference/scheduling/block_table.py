"""A sequence and its block table: the blocks that hold the keys and values of its tokens.

    tokens     the cat sat on the │ mat            known: prompt and sampled tokens
    computed   ─────────────────────▶              keys and values of these are in the cache
    table      [ 7        , 2        ]             token i is in slot i mod 4 of table[i div 4]
                 the cat sat on  the · · ·

While decoding, one token is known and not yet computed: the last one sampled.
"""

from .block_pool import BlockPool, blocks_for, prefix_keys


class CachedSequence:
    """A sequence's tokens, the number of computed ones, and the blocks that hold these."""

    def __init__(self, name: str, tokens: list[int], answer_index: int = 0):
        self.name, self.tokens = name, list(tokens)
        self.answer_index = answer_index    # among the answers to one prompt
        self.table: list[int] = []
        self.num_computed = 0

    @property
    def num_pending(self) -> int:
        """Known tokens that are not computed yet."""
        return len(self.tokens) - self.num_computed

    def last_block(self, pool: BlockPool) -> int | None:
        """The partly filled block, in which the next token is written; None if all are whole."""
        if self.num_computed % pool.block_size == 0:
            return None
        return self.table[self.num_computed // pool.block_size]

    def missing_blocks(self, pool: BlockPool, num_tokens: int) -> int:
        """The number of blocks that the next tokens need in addition to the table's."""
        needed = blocks_for(self.num_computed + num_tokens, pool.block_size)
        return max(0, needed - len(self.table))

    def copy_on_write(self, pool: BlockPool) -> tuple[int, int] | None:
        """If the last block is partly filled and shared, replace it by one of its own: (from, to).

        The cache must copy the content before anything is written.  A block that is not shared is
        written in place; after a rewind it may still be in the prefix cache, and leaves it now.
        """
        old = self.last_block(pool)
        if old is None:
            return None
        if pool.ref_counts[old] == 1:           # no other sequence reads it
            pool.forget(old)
            return None
        self.table[self.num_computed // pool.block_size] = new = pool.allocate()
        pool.release(old)
        pool.num_copied += 1
        return old, new

    def allocate(self, pool: BlockPool, num_tokens: int) -> list[int]:
        """Append the blocks that the next tokens need; return them.

        Raises OutOfBlocks before anything has changed.
        """
        missing = self.missing_blocks(pool, num_tokens)
        pool.require(missing)
        blocks = [pool.allocate() for _ in range(missing)]
        self.table += blocks
        return blocks

    def fork(self, pool: BlockPool, name: str, answer_index: int = 0) -> "CachedSequence":
        """A second sequence with the same tokens and the same blocks."""
        child = CachedSequence(name, self.tokens, answer_index)
        child.table, child.num_computed = list(self.table), self.num_computed
        for block in self.table:
            pool.share(block)
        return child

    def rewind(self, pool: BlockPool, num_tokens: int) -> list[int]:
        """Keep `num_tokens` computed tokens; return the blocks that became free.

        Speculative decoding gives up rejected drafts in this way.  The tokens themselves stay in
        `tokens` until the caller removes them.
        """
        if not 0 <= num_tokens <= self.num_computed:
            raise ValueError(f"a sequence of {self.num_computed} computed tokens cannot go back "
                             f"to {num_tokens}")
        self.num_computed = num_tokens
        return self._release(pool, keep=blocks_for(num_tokens, pool.block_size))

    def release(self, pool: BlockPool) -> list[int]:
        """Give all blocks back, the last one first; return those that became free."""
        self.num_computed = 0
        return self._release(pool, keep=0)

    def _release(self, pool: BlockPool, keep: int) -> list[int]:
        given_back = self.table[keep:][::-1]
        del self.table[keep:]
        return [block for block in given_back if pool.release(block)]

    def register(self, pool: BlockPool, first: int, salt: str = "") -> None:
        """Let the prefix cache know the whole blocks that tokens from `first` on have filled."""
        begin, end = first // pool.block_size, self.num_computed // pool.block_size
        if begin < end:
            keys = prefix_keys(self.tokens[:self.num_computed], pool.block_size, salt)
            for block, key in list(zip(self.table, keys))[begin:]:
                pool.register(block, key)
