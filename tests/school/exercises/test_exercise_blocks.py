"""Exercises block_allocate, block_release, copy_on_write and prefix_keys."""

import pytest

from minipar.inference.scheduling import BlockPool, CachedSequence, OutOfBlocks, prefix_keys


def pool_after_use() -> BlockPool:
    """Four blocks; 2, 0, 3, 1 were released in this order, and 0 is in the prefix cache."""
    pool = BlockPool(4, 2)
    pool.free.clear()
    pool.free.update(dict.fromkeys([2, 0, 3, 1]))
    pool.block_of[b"key"], pool.key_of[0] = 0, b"key"
    return pool


def test_allocate_takes_the_least_recently_released_block():
    pool = pool_after_use()
    taken = [pool.allocate() for _ in range(4)]
    assert taken == [2, 0, 3, 1], f"blocks are taken in the order of their release, not {taken}"
    assert not pool.free and pool.num_allocated == 4


def test_allocate_counts_one_user():
    pool = pool_after_use()
    block = pool.allocate()
    assert pool.ref_counts[block] == 1 and pool.num_used == 1


def test_allocate_forgets_what_the_block_held():
    pool = pool_after_use()
    pool.allocate()
    assert pool.num_evicted == 0, "block 2 held nothing: nothing was evicted"
    pool.allocate()
    assert pool.longest_prefix([b"key"]) == [], "the key still leads to a block of other tokens"
    assert pool.num_evicted == 1


def test_allocate_from_an_empty_pool_changes_nothing():
    pool = pool_after_use()
    for _ in range(4):
        pool.allocate()
    before = pool.num_allocated, list(pool.ref_counts)
    with pytest.raises(OutOfBlocks):
        pool.allocate()
    assert (pool.num_allocated, list(pool.ref_counts)) == before


def pool_in_use() -> BlockPool:
    """Four blocks: 0 and 1 have one user, 2 has two; 3 is free.  Block 1 is a cached one."""
    pool = BlockPool(4, 2)
    pool.free.clear()
    pool.free[3] = None
    pool.ref_counts[:] = [1, 1, 2, 0]
    pool.block_of[b"key"], pool.key_of[1] = 1, b"key"
    return pool


def test_release_puts_a_block_at_the_back():
    pool = pool_in_use()
    assert pool.release(1) is True and pool.release(0) is True
    assert list(pool.free) == [3, 1, 0], "a released block is overwritten last"
    assert pool.ref_counts == [0, 0, 2, 0]


def test_release_keeps_a_block_that_others_use():
    pool = pool_in_use()
    assert pool.release(2) is False, "another sequence still reads block 2"
    assert list(pool.free) == [3] and pool.ref_counts[2] == 1
    assert pool.release(2) is True and list(pool.free) == [3, 2]


def test_release_keeps_the_content_cached():
    pool = pool_in_use()
    pool.release(1)
    assert pool.longest_prefix([b"key"]) == [1], "a free block keeps its content until it is taken"


def test_release_of_a_free_block_is_refused():
    pool = pool_in_use()
    with pytest.raises(ValueError):
        pool.release(3)
    assert pool.ref_counts == [1, 1, 2, 0] and list(pool.free) == [3]


def forked(num_tokens: int, num_answers: int = 2) -> tuple[BlockPool, list[CachedSequence]]:
    """Answers to one prompt, which share its blocks 0, 1, …, of 4 tokens each."""
    pool = BlockPool(8, 4)
    first = CachedSequence("0", list(range(num_tokens)))
    first.allocate(pool, num_tokens)
    first.num_computed = num_tokens
    return pool, [first, *(first.fork(pool, str(i), i) for i in range(1, num_answers))]


def test_copy_replaces_a_shared_last_block():
    pool, (a, b) = forked(6)
    assert a.copy_on_write(pool) == (1, 2), "(from, to): the content of block 1 goes into block 2"
    assert (a.table, b.table) == ([0, 2], [0, 1])
    assert pool.ref_counts[:3] == [2, 1, 1], "the old block has a user less, the new one has one"
    assert pool.num_copied == 1


def test_the_last_of_the_answers_writes_in_place():
    pool, answers = forked(6, 3)
    copies = [answer.copy_on_write(pool) for answer in answers]
    assert copies == [(1, 2), (1, 3), None] and pool.num_copied == 2
    assert len({answer.table[1] for answer in answers}) == 3


def test_whole_blocks_stay_shared():
    pool, (a, b) = forked(8)
    assert a.copy_on_write(pool) is None, "the next token goes into a new block: nothing to copy"
    assert a.table == b.table == [0, 1] and pool.num_copied == 0


def test_a_block_of_its_own_is_not_copied():
    pool, (a,) = forked(6, 1)
    assert a.copy_on_write(pool) is None and a.table == [0, 1] and pool.num_used == 2


def test_a_block_that_is_overwritten_leaves_the_prefix_cache():
    pool, (a,) = forked(8, 1)
    a.register(pool, 0)
    keys = prefix_keys(a.tokens, 4)
    a.rewind(pool, 6)                               # token 6 will be another one
    assert a.copy_on_write(pool) is None
    assert pool.longest_prefix(keys) == [0], "block 1 will not hold what its key says"


def test_one_key_for_each_whole_block():
    assert [len(prefix_keys([1] * n, 4)) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_equal_beginnings_have_equal_keys():
    a, b = prefix_keys([5, 6, 7, 8, 9, 9], 2), prefix_keys([5, 6, 7, 8, 1, 2], 2)
    assert a[:2] == b[:2] and a[2] != b[2]
    assert all(isinstance(key, bytes) for key in a)


def test_a_key_stands_for_all_tokens_from_the_beginning():
    a, b = prefix_keys([1, 2, 7, 7], 2), prefix_keys([3, 4, 7, 7], 2)
    assert a[1] != b[1], "keys and values of the same tokens differ behind other tokens"


def test_other_tokens_have_other_keys():
    keys = [prefix_keys(tokens, 2)[0] for tokens in ([1, 23], [12, 3], [3, 12], [257, 2], [1, 2])]
    assert len(set(keys)) == 5


def test_salt_keeps_contents_apart():
    assert prefix_keys([1, 2], 2, "one model")[0] != prefix_keys([1, 2], 2, "another")[0]
