"""The slots of a paged cache without arrays: a slot holds the tokens up to its own.

So a test sees whose keys and values a sequence would read, as attention does.
"""

from collections.abc import Iterable, Sequence

from minipar.inference.scheduling import (
    BlockPool,
    CachedSequence,
    ScheduledStep,
    Scheduler,
    prefix_keys,
)


class SlotContents:
    """The tokens that each slot of `num_blocks` blocks holds, on the device and on the host."""

    def __init__(self, num_blocks: int, block_size: int):
        self.block_size = block_size
        self.device = [[None] * block_size for _ in range(num_blocks)]
        self.host: list[list] = [[None] * block_size for _ in range(num_blocks)]

    def apply(self, step: ScheduledStep) -> None:
        """Move blocks, then write what the step computes."""
        for pairs, source, target in ((step.swapped_out, self.device, self.host),
                                      (step.swapped_in, self.host, self.device),
                                      (step.copied, self.device, self.device)):
            for old, new in pairs:
                if target is self.host and new == len(target):      # the host's pool has grown
                    target.append([])
                target[new] = list(source[old])
        for request, start, num_tokens, _ in step.scheduled:
            for sequence in request.sequences:
                self.write(sequence, start, num_tokens, request.salt)

    def write(self, sequence: CachedSequence, start: int, num_tokens: int, salt: str = "") -> None:
        """Write `num_tokens` tokens of a sequence from position `start` on."""
        for i in range(start, start + num_tokens):
            block = self.device[sequence.table[i // self.block_size]]
            block[i % self.block_size] = (salt, *sequence.tokens[:i + 1])

    def check_sequence(self, sequence: CachedSequence, salt: str = "",
                       on_host: bool = False) -> None:
        """Assert that every computed token is where the table says."""
        blocks = self.host if on_host else self.device
        for i in range(sequence.num_computed):
            found = blocks[sequence.table[i // self.block_size]][i % self.block_size]
            assert found == (salt, *sequence.tokens[:i + 1]), f"slot of token {i}"

    def check_cached(self, pool: BlockPool) -> None:
        """Assert that each registered key is that of what its block holds."""
        assert {block: key for key, block in pool.block_of.items()} == pool.key_of
        for block, key in pool.key_of.items():
            salt, *tokens = self.device[block][-1]
            assert prefix_keys(tokens, self.block_size, salt)[-1] == key
            for i, content in enumerate(self.device[block]):
                assert content == (salt, *tokens[:len(tokens) - self.block_size + i + 1])


def check_pool(pool: BlockPool, tables: Iterable[Sequence[int]]) -> None:
    """Assert that counts are the uses in `tables`, and that exactly unused blocks are free."""
    uses = [0] * pool.num_blocks
    for table in tables:
        assert len(set(table)) == len(table)
        for block in table:
            uses[block] += 1
    assert pool.ref_counts == uses
    assert sorted(pool.free) == [block for block, count in enumerate(uses) if not count]


def check_scheduler(scheduler: Scheduler) -> None:
    """Assert the promises of both pools and of all queues."""
    def tables(requests):
        return [sequence.table for request in requests for sequence in request.sequences]

    check_pool(scheduler.pool, tables(scheduler.running))
    check_pool(scheduler.host_pool, tables(scheduler.swapped))
    assert not any(tables(scheduler.waiting))
    requests = [*scheduler.waiting, *scheduler.running, *scheduler.swapped]
    assert len(set(map(id, requests))) == len(requests)
    assert len(scheduler.running) <= (scheduler.config.max_requests or len(requests))
    for sequence in (each for request in requests for each in request.sequences):
        size, capacity = scheduler.config.block_size, len(sequence.table)
        assert 0 <= capacity * size - sequence.num_computed < size      # waste below one block
        assert sequence.num_computed <= len(sequence.tokens)
