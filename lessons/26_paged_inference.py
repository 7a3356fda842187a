"""Lesson 26. Paged inference: why does a cache of keys and values have pages?

A model that generates keeps the keys and values of all tokens so far, so that a step computes only
the new one.  The length of an answer is not known before it ends.  One stretch of memory for each
sequence must therefore be as long as the longest answer: most of it stays empty.  A paged cache is
cut into blocks of B tokens.  Each sequence has a table of its blocks, as a process has of pages:

    table of A  [0, 3]      block   0 │ 1 │ 2 │ 3 │ 4       token i is in slot i mod B
    table of B  [1, 2]              A   B   B   A   free    of block table[i div B]

A sequence takes a block when it needs one.  And two tables may name the same block: answers to one
prompt share it, until one of them writes (copy-on-write).  Attention reads a block at a time.

    python lessons/26_paged_inference.py       mpirun -n 4 python lessons/26_paged_inference.py
"""

import math

import numpy as np
from support.kit import Lesson, Row
from support.lesson_26 import compare_with_library

from minipar.comm import Communicator
from minipar.launcher import launch

B = 4                                           # tokens of a block


class Pool:
    """Blocks of B keys and values of d numbers: which are free, and how many tables name each."""

    def __init__(self, num_blocks: int, d: int):
        self.free, self.uses, self.num_copies = [*range(num_blocks)], [0] * num_blocks, 0
        self.keys, self.values = np.full((2, num_blocks, B, d), np.nan)


def allocate(pool: Pool) -> int:
    pool.uses[pool.free[0]] = 1
    return pool.free.pop(0)


def share(pool: Pool, table: list[int]) -> list[int]:
    """The table of a second answer to the same prompt: it names the first one's blocks."""
    for block in table:
        pool.uses[block] += 1
    return [*table]


def release(pool: Pool, table: list[int]) -> None:
    for block in reversed(table):
        pool.uses[block] -= 1
        if pool.uses[block] == 0:
            pool.free.append(block)


def write(pool: Pool, table: list[int], i: int, key: np.ndarray, value: np.ndarray) -> None:
    """Keep token i, the next one of a sequence."""
    if i % B == 0:                              # all blocks are full: one more, and not before
        table.append(allocate(pool))
    elif pool.uses[table[-1]] > 1:              # another sequence reads it: copy on write
        shared, own = table[-1], allocate(pool)
        pool.keys[own], pool.values[own] = pool.keys[shared], pool.values[shared]
        pool.uses[shared] -= 1
        pool.num_copies += 1
        table[-1] = own
    pool.keys[table[-1], i % B], pool.values[table[-1], i % B] = key, value


def attend(pool: Pool, table: list[int], num_tokens: int, q: np.ndarray) -> np.ndarray:
    """softmax(q Kᵀ/√d) V over a sequence, a block at a time: lesson 16's `attend` and `merge`."""
    m, total, out = -math.inf, 0.0, 0.0         # highest score x, Σ exp(x - m), Σ exp(x - m) v
    for start, block in zip(range(0, num_tokens, B), table):
        filled = slice(0, num_tokens - start)
        x = pool.keys[block, filled] @ q / math.sqrt(q.size)
        higher = max(m, x.max())
        w, shrink = np.exp(x - higher), math.exp(m - higher)
        total, out = total * shrink + w.sum(), out * shrink + w @ pool.values[block, filled]
        m = higher
    return out / total


def main(comm: Communicator) -> None:
    lesson = Lesson(comm, __file__, __doc__)
    d, prompt, n, draw = 8, 6, 10, np.random.default_rng(0)     # n tokens, with the prompt's
    pool, first, q = Pool(12, d), [], draw.standard_normal(d)
    one, two = draw.standard_normal((2, n, 2, d))       # key and value of each token, two answers
    two[:prompt] = one[:prompt]
    for i in range(prompt):
        write(pool, first, i, *one[i])
    second = share(pool, first)
    for i in range(prompt, n):
        write(pool, first, i, *one[i])
        write(pool, second, i, *two[i])
    whole, blocks, errors = prompt // B, 12 - len(pool.free), []
    for table, tokens in ((first, one), (second, two)):
        weights = np.exp(tokens[:, 0] @ q / math.sqrt(d))       # softmax, at once
        right = weights @ tokens[:, 1] / weights.sum()
        errors.append(np.abs(attend(pool, table, n, q) - right).max())
        release(pool, table)
    lesson.table([
        Row("blocks, ⌊P/B⌋ + s (⌈n/B⌉ − ⌊P/B⌋)", whole + 2 * (-(-n // B) - whole), blocks),
        Row("copies, s − 1", 1, pool.num_copies),
        Row("attention by blocks − at once", 1e-14, max(errors), "", "≤"),
        Row("free blocks after both have ended", 12, len(pool.free))],
        f"s = 2 answers of n = {n} tokens with their prompt of P = {prompt}")
    compare_with_library(lesson)
    lesson.takeaway("Blocks on demand waste less than one block a sequence, whatever the answers' "
                    "lengths; and what several sequences have in common is kept once.")
    lesson.exercises(questions=[
        "In write, write `elif False:` in place of `elif pool.uses[table[-1]] > 1:`. What breaks?",
        "A request has 100 tokens. How many slots are wasted with blocks of 1, 16 and 256 tokens, "
        "and why is a block not always 1?",
        "OPT-13B has 40 layers, 40 heads of width 128 and numbers of 2 bytes. How many bytes is a "
        "token, and how many sequences of 2,048 tokens fit into 12 GiB?",
        "Two answers share a partly filled block. Why does only one of them copy it?",
        "A prompt of 24 tokens is in the prefix cache, in 6 blocks. Why are only 5 shared?"])


if __name__ == "__main__":
    launch(main)
