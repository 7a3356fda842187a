"""A request: a prompt, how many tokens may follow, and the sequences that answer it."""

from dataclasses import dataclass, field

from .block_pool import BlockPool, blocks_for
from .block_table import CachedSequence


@dataclass(eq=False)        # two requests with equal fields are not equal
class Request:
    """A prompt and `num_answers` answers of at most `max_tokens` tokens each, or of `lengths`.

    One sequence computes the prompt once; then it forks into the answers, which share the prompt's
    blocks.
    """

    name: str
    prompt: list[int]
    max_tokens: int
    num_answers: int = 1
    salt: str = ""                          # only requests of the same salt share cached blocks
    lengths: list[int] = field(default_factory=list)        # of each answer; empty: max_tokens
    sequences: list[CachedSequence] = field(init=False)       # those that still run
    ended: list[CachedSequence] = field(init=False, default_factory=list)

    def __post_init__(self):
        if not self.prompt or self.max_tokens < 1 or self.num_answers < 1:
            raise ValueError(f"request {self.name!r} has {len(self.prompt)} prompt tokens, "
                             f"max_tokens={self.max_tokens} and num_answers={self.num_answers}: "
                             "each must be at least 1")
        self.sequences = [CachedSequence(self.name, self.prompt)]
        self.lengths = self.lengths or [self.max_tokens] * self.num_answers

    @property
    def num_computed(self) -> int:
        """The number of computed tokens of each sequence; all sequences advance together."""
        return self.sequences[0].num_computed

    @property
    def num_pending(self) -> int:
        """The number of known tokens of each sequence that are not computed yet."""
        return self.sequences[0].num_pending

    @property
    def num_blocks(self) -> int:
        """The number of blocks that the request has now; shared ones count once."""
        return len({block for sequence in self.sequences for block in sequence.table})

    def outputs(self, sequence: CachedSequence) -> list[int]:
        """The tokens that a sequence of this request has got after the prompt."""
        return sequence.tokens[len(self.prompt):]

    def is_complete(self, sequence: CachedSequence) -> bool:
        """True if a sequence has all its tokens."""
        return len(self.outputs(sequence)) >= self.lengths[sequence.answer_index]

    def most_blocks(self, block_size: int) -> int:
        """The most blocks that the request uses at a time, if it shares none with others.

        All answers share the blocks that the prompt fills, and its last block until they write into
        it; later blocks belong to one answer each.  The last token of an answer is drawn, not
        computed, so it takes no slot.  When the i-th longest answer computes the token before its
        last, i answers run, all of that length.  The result is the largest number, for i = 1, 2, …
        or the prompt.
        """
        num_prompt, shared = len(self.prompt), len(self.prompt) // block_size
        longest_first = enumerate(sorted(self.lengths, reverse=True), start=1)
        return max([blocks_for(num_prompt, block_size),
                    *(shared + i * (blocks_for(num_prompt + length - 1, block_size) - shared)
                      for i, length in longest_first if length > 1)])

    def fork(self, pool: BlockPool) -> None:
        """After the prompt, make one sequence for each answer, all with the prompt's blocks."""
        if len(self.sequences) + len(self.ended) < self.num_answers:
            first = self.sequences[0]
            self.sequences += [first.fork(pool, f"{self.name}.{i}", i)
                               for i in range(1, self.num_answers)]
            first.name = f"{self.name}.0"

    def end(self, sequence: CachedSequence, pool: BlockPool) -> list[int]:
        """Let a sequence go; return the blocks that became free."""
        self.sequences.remove(sequence)
        self.ended.append(sequence)
        return sequence.release(pool)

    def blocks_to_allocate(self, pool: BlockPool, num_tokens: int) -> int:
        """The number of blocks that all sequences need for their next tokens, copies included."""
        fresh = sum(sequence.missing_blocks(pool, num_tokens) for sequence in self.sequences)
        writers = [last for sequence in self.sequences
                   if (last := sequence.last_block(pool)) is not None and pool.ref_counts[last] > 1]
        # of the sequences that share a block, the last one writes in place if no others read it
        in_place = sum(writers.count(block) == pool.ref_counts[block] for block in set(writers))
        return fresh + len(writers) - in_place

    def move(self, source: BlockPool, target: BlockPool) -> tuple[list[tuple[int, int]], list[int]]:
        """Move all blocks to another pool; shared ones move once, and stay shared.

        Returns ([(from, to), …], the blocks that became free in `source`).
        """
        moved: dict[int, int] = {}
        freed = []
        for block in (block for sequence in self.sequences for block in sequence.table):
            if block in moved:
                target.share(moved[block])
            else:
                moved[block] = target.allocate()
        for sequence in self.sequences:
            table, num_computed = [moved[block] for block in sequence.table], sequence.num_computed
            freed += sequence.release(source)
            sequence.table, sequence.num_computed = table, num_computed
        return list(moved.items()), freed
