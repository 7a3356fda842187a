"""Lesson 26; `size` is a seed, or a number of tokens.  Ranks play no part."""

import random

import numpy as np

from minipar import autograd as ag
from minipar.inference.scheduling import BlockPool, CachedSequence
from tests.lessons.algorithms import Case, says

NUM_BLOCKS = 40


def moves(seed):
    """Random moves: ("begin",), ("fork", i), ("write", i), ("end", i), of the i-th sequence."""
    draw, num_sequences = random.Random(seed), 0
    for _ in range(40):
        kind = draw.choice(["begin", "fork", "write", "write", "write", "write", "end"])
        if kind == "begin" or not num_sequences:
            num_sequences += 1
            yield "begin", 0
        else:
            yield kind, draw.randrange(num_sequences)
            num_sequences += {"fork": 1, "end": -1}.get(kind, 0)


def own_tables(function, comm, seed, names):
    """The tables after each move, the free queue at the end."""
    pool, sequences, seen = names["Pool"](NUM_BLOCKS, 2), [], []
    for kind, i in moves(seed):
        if kind == "begin":
            sequences.append(([], 0))
        elif kind == "fork":
            table, length = sequences[i]
            sequences.append((names["share"](pool, table), length))
        elif kind == "write":
            table, length = sequences[i]
            names["write"](pool, table, length, np.zeros(2), np.zeros(2))
            sequences[i] = table, length + 1
        else:
            names["release"](pool, sequences.pop(i)[0])
        seen += [block for table, _ in sequences for block in table]
    return np.array([*seen, *pool.free, pool.num_copies])


def library_tables(comm, seed):
    pool, sequences, seen = BlockPool(NUM_BLOCKS, 4), [], []
    for kind, i in moves(seed):
        if kind == "begin":
            sequences.append(CachedSequence("", []))
        elif kind == "fork":
            sequences.append(sequences[i].fork(pool, ""))
        elif kind == "write":
            sequences[i].copy_on_write(pool)
            sequences[i].allocate(pool, 1)
            sequences[i].num_computed += 1
        else:
            sequences.pop(i).release(pool)
        seen += [block for sequence in sequences for block in sequence.table]
    return np.array([*seen, *pool.free, pool.num_copied])


def qkv(tokens):
    return np.random.default_rng(tokens).standard_normal((tokens, 3, 8))


def last_row(function, comm, tokens, names):
    """Attention of the last token, over blocks in an order of their own."""
    pool, table = names["Pool"](NUM_BLOCKS, 8), []
    pool.free.reverse()
    for i, (_, key, value) in enumerate(qkv(tokens)):
        names["write"](pool, table, i, key, value)
    return function(pool, table, tokens, 30 * qkv(tokens)[-1, 0])


def fused(comm, tokens):
    x = qkv(tokens)
    x[:, 0] *= 30
    return ag.fused_attention(ag.Tensor(x.reshape(1, tokens, 24)), 1).data[0, -1]


CASES = [
    Case("allocate", own_tables, library_tables, (0,)),
    Case("share", own_tables, library_tables, (1, 2)),
    Case("release", own_tables, library_tables, (3, 4)),
    Case("write", own_tables, library_tables, tuple(range(5, 30))),
    Case("attend", last_row, fused, (1, 4, 7, 23), 1e-13),
]
PARTS = {"Pool"}


def check_change(names):
    """The first answer reads the second one's token; the second one is right; so is one alone."""
    def outputs(num_answers):
        pool, table, kept = names["Pool"](12, 8), [], np.random.default_rng(0).random((3, 7, 2, 8))
        kept[:, :6] = kept[0, :6]
        for i in range(6):
            names["write"](pool, table, i, *kept[0, i])
        tables = [table, *(names["share"](pool, table) for _ in range(num_answers - 1))]
        for table, own in zip(tables, kept):
            names["write"](pool, table, 6, *own[6])
        found = [names["attend"](pool, table, 7, np.ones(8)) for table in tables]
        return [np.abs(mean - np.exp(scores := own[:, 0].sum(1) / 8**0.5) @ own[:, 1]
                       / np.exp(scores).sum()).max() for mean, own in zip(found, kept)]
    first, second = outputs(2)
    assert first > 1e-3 and second < 1e-14 and outputs(1)[0] < 1e-14
    says("26", "the first answer is wrong, the second one right")
