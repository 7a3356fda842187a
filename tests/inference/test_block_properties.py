"""10,000 random operations on blocks, and as many on schedulers, break no promise.

Hypothesis draws bytes; each pair of them is an operation and its argument.  Of a failure it finds
the shortest bytes.
"""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minipar.inference.scheduling import (
    BlockPool,
    CachedSequence,
    OutOfBlocks,
    Policy,
    Preemption,
    Request,
    RequestTooLarge,
    Scheduler,
    SchedulerConfig,
    prefix_keys,
)
from tests.support.slot_contents import SlotContents, check_pool, check_scheduler

EXAMPLES, OPERATIONS = 50, 200
STEADY = settings(max_examples=EXAMPLES, derandomize=True, database=None, deadline=None)
BYTES = st.binary(min_size=2 * OPERATIONS, max_size=2 * OPERATIONS)


def pairs(operations: bytes) -> Iterator[tuple[int, int]]:
    return zip(operations[::2], operations[1::2])


class Blocks:
    """A pool, sequences that use it, and what their slots would hold."""

    def __init__(self, num_blocks: int, block_size: int):
        self.pool = BlockPool(num_blocks, block_size)
        self.contents = SlotContents(num_blocks, block_size)
        self.sequences: list[CachedSequence] = []

    def state(self):
        pool = self.pool
        return (list(pool.ref_counts), list(pool.free), dict(pool.key_of),
                [(list(each.table), each.num_computed) for each in self.sequences])

    def operate(self, operation: int, argument: int) -> None:
        if not self.sequences:
            self.sequences.append(CachedSequence("", []))
        sequence = self.sequences[argument % len(self.sequences)]
        is_crowded = len(self.sequences) > 5
        if operation % 8 < 4:
            self.compute(sequence, [(argument + i) % 3 for i in range(1 + argument // 8 % 7)])
        elif operation % 8 == 4 and not is_crowded:
            self.sequences.append(sequence.fork(self.pool, ""))
        elif operation % 8 == 5:
            self.rewind(sequence, argument % (sequence.num_computed + 1))
        elif operation % 8 == 6 and not is_crowded:
            self.begin_with_cached_blocks(sequence.tokens)
        else:
            sequence.release(self.pool)
            self.sequences.remove(sequence)

    def rewind(self, sequence: CachedSequence, kept: int) -> None:
        """Go back to `kept` tokens; at most the end of the table goes."""
        table = list(sequence.table)
        sequence.rewind(self.pool, kept)
        assert sequence.table == table[:len(sequence.table)]
        del sequence.tokens[kept:]

    def compute(self, sequence: CachedSequence, tokens: list[int]) -> None:
        """Append tokens, and write them; if blocks run short, nothing must have changed."""
        pool, before, table = self.pool, self.state(), list(sequence.table)
        last = sequence.last_block(pool)
        needed = (sequence.missing_blocks(pool, len(tokens))
                  + (last is not None and pool.ref_counts[last] > 1))
        if needed > len(pool.free):
            with pytest.raises(OutOfBlocks):
                pool.require(needed)
            if sequence.missing_blocks(pool, len(tokens)) > len(pool.free):
                with pytest.raises(OutOfBlocks):
                    sequence.allocate(pool, len(tokens))
            elif not pool.free:
                with pytest.raises(OutOfBlocks):
                    sequence.copy_on_write(pool)
            assert self.state() == before
            return
        start = sequence.num_computed
        copy = sequence.copy_on_write(pool)
        if copy:
            self.contents.device[copy[1]] = list(self.contents.device[copy[0]])
            assert (table[-1], sequence.table[-1]) == copy
        sequence.allocate(pool, len(tokens))
        kept = len(table) - bool(copy)
        assert sequence.table[:kept] == table[:kept]
        sequence.tokens += tokens
        self.contents.write(sequence, start, len(tokens))
        sequence.num_computed += len(tokens)
        sequence.register(pool, start)

    def begin_with_cached_blocks(self, tokens: list[int]) -> None:
        """A new sequence on the longest cached prefix of `tokens`."""
        size = self.pool.block_size
        new = CachedSequence("", [])
        new.table = self.pool.longest_prefix(prefix_keys(tokens, size))
        for block in new.table:
            self.pool.share(block)
        new.num_computed = len(new.table) * size
        new.tokens = tokens[:new.num_computed]
        self.sequences.append(new)

    def check(self) -> None:
        check_pool(self.pool, [sequence.table for sequence in self.sequences])
        self.contents.check_cached(self.pool)
        for sequence in self.sequences:
            self.contents.check_sequence(sequence)
            room = len(sequence.table) * self.pool.block_size - sequence.num_computed
            assert 0 <= room < self.pool.block_size


@STEADY
@given(num_blocks=st.integers(1, 20), block_size=st.integers(1, 5), operations=BYTES)
def test_blocks_keep_their_promises(num_blocks, block_size, operations):
    blocks = Blocks(num_blocks, block_size)
    for operation, argument in pairs(operations):
        blocks.operate(operation, argument)
        blocks.check()
    for sequence in blocks.sequences:
        sequence.release(blocks.pool)
    assert sorted(blocks.pool.free) == list(range(num_blocks))


def configs(policy: str, preempt_by: str):
    return st.builds(
        SchedulerConfig, num_blocks=st.integers(6, 16), block_size=st.integers(1, 5),
        token_budget=st.one_of(st.integers(3, 20), st.none()),
        max_requests=st.one_of(st.integers(2, 5), st.none()), prefix_caching=st.booleans(),
        preempt_by=st.just(preempt_by), policy=st.just(policy))


class Requests:
    """A scheduler, its requests, and what the slots of its blocks would hold."""

    def __init__(self, config: SchedulerConfig):
        self.scheduler = Scheduler(config)
        self.contents = SlotContents(config.num_blocks, config.block_size)
        self.num_added = self.num_idle = 0

    def operate(self, operation: int, argument: int) -> None:
        scheduler = self.scheduler
        requests = [*scheduler.running, *scheduler.waiting, *scheduler.swapped]
        if (operation % 8 < 2 or not requests) and len(scheduler.waiting) < 4:
            self.add(operation // 8, argument)
        elif operation % 32 == 2 and requests:
            scheduler.cancel(requests[argument % len(requests)])
        elif operation % 128 == 3:
            scheduler.forget_cached()
        else:
            self.step(argument)

    def add(self, shape: int, argument: int) -> None:
        prompt = [(argument >> i & 1) for i in range(1 + argument % 11)]
        num_answers = 3 if argument // 8 % 3 == 2 else 1
        request = Request(f"r{self.num_added}", prompt, 1 + shape % 16, num_answers,
                          salt="other" * (argument % 16 == 0))
        self.num_added += 1
        try:
            self.scheduler.add(request)
        except RequestTooLarge:
            assert request not in self.scheduler.waiting

    def step(self, argument: int) -> None:
        scheduler, budget = self.scheduler, self.scheduler.config.token_budget
        if not scheduler.has_requests:
            return
        before = {sequence: list(sequence.table) for request in scheduler.running
                  for sequence in request.sequences}
        step = scheduler.schedule()
        self.contents.apply(step)
        computed = sum(each.num_tokens * each.num_sequences for each in step.scheduled)
        assert budget is None or computed <= budget
        self.num_idle = 0 if computed else self.num_idle + 1
        assert self.num_idle < 2, "two steps without a token, though requests are left"
        self.check_growth(step, before)
        tokens, stopped = {}, set()
        for i, (_, sequence) in enumerate(scheduler.advance(step)):
            tokens[sequence] = argument >> i & 1
            if (argument + i) % 13 == 0:
                stopped.add(sequence)
        self.check_contents()
        scheduler.finish(step, tokens, stopped)

    def check_growth(self, step, before) -> None:
        copies = {new: old for old, new in step.copied}
        for request in self.scheduler.running:
            for sequence in request.sequences:
                if sequence in before and request not in step.preempted:
                    table = [copies.get(block, block) for block in sequence.table]
                    assert table[:len(before[sequence])] == before[sequence]

    def check_contents(self) -> None:
        for requests, on_host in ((self.scheduler.running, False), (self.scheduler.swapped, True)):
            for request in requests:
                for sequence in request.sequences:
                    self.contents.check_sequence(sequence, request.salt, on_host)

    def check(self) -> None:
        check_scheduler(self.scheduler)
        self.check_contents()
        self.contents.check_cached(self.scheduler.pool)


@pytest.mark.parametrize("preempt_by", Preemption)
@pytest.mark.parametrize("policy", Policy)
@settings(STEADY, max_examples=15)
@given(data=st.data())
@pytest.mark.one_in(2)
def test_schedulers_keep_their_promises(policy, preempt_by, data):
    config, operations = data.draw(configs(policy, preempt_by)), data.draw(BYTES)
    requests = Requests(config)
    for operation, argument in pairs(operations):
        requests.operate(operation, argument)
        requests.check()
    while requests.scheduler.has_requests:      # ends: two idle steps in a row are an error
        requests.step(255)
        requests.check()
    pools = requests.scheduler.pool, requests.scheduler.host_pool
    assert all(sorted(pool.free) == list(range(pool.num_blocks)) for pool in pools)
