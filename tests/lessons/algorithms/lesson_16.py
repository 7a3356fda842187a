"""Lesson 16; of a sequence each rank has 2 · `size` tokens, in zig-zag order."""

import numpy as np

from minipar import autograd as ag
from minipar.autograd import online_softmax
from minipar.comm import Cluster, collectives
from minipar.parallel.context.token_order import positions_of_ranks
from tests.lessons.algorithms import Case, matrix, says

SOME = (1, 4, 7)


def support():
    from support import lesson_16
    return lesson_16


def tokens(comm, size):
    """q, k, v of this rank's tokens, in 2 heads for each rank, and the positions of all ranks."""
    positions = positions_of_ranks("zigzag", 2 * size * comm.size, comm.size)
    return *support().queries_keys_values(comm, positions, 2 * comm.size), np.array(positions)


def over_ranks(function, comm, size, names):
    return function(comm, *tokens(comm, size))


def alone(size):
    return np.random.default_rng(size).standard_normal((3, 2, size, 4))


def on_one_rank(function, comm, size, names):
    _, s, o = function(*alone(size), np.arange(size), np.arange(size))
    return o / s


def by_fused_attention(comm, size):
    return support().heads_of(ag.fused_attention(support().fused(*alone(size)), 2, 2), 2)


def partials(size):
    """Two unfinished softmaxes (out, m, s); the second sees no key at the first query."""
    draw = np.random.default_rng(size)
    found = [online_softmax.Partial(draw.standard_normal((2, size, 4)), 50 * draw.standard_normal(
        (2, size, 1)), draw.uniform(1, 9, (2, size, 1))) for _ in range(2)]
    found[1].maximum[:, 0] = -1e9
    return found


def merged(function, comm, size, names):
    m, s, o = function(*[(part.maximum, part.sum, part.out) for part in partials(size)])
    return [m, s, o]


def by_online_softmax(comm, size):
    total = online_softmax.merge(*partials(size))
    return [total.maximum, total.sum, total.out]


CASES = [
    Case("attend", on_one_rank, by_fused_attention, SOME, 1e-14),
    Case("merge", merged, by_online_softmax, SOME, 1e-14),
    Case("ring_attention", over_ranks,
         lambda comm, size: support().library_ring(comm, *tokens(comm, size)), SOME, 1e-14),
    Case("zigzag", lambda function, comm, size, names: [
        *function(2 * size * comm.size, comm.size)],
         lambda comm, size: positions_of_ranks("zigzag", 2 * size * comm.size, comm.size), SOME),
    Case("all_to_all", lambda function, comm, size, names: function(comm, matrix(comm, size)),
         lambda comm, size: collectives.all_to_all(comm, matrix(comm, size),
                                                   algorithm="pairwise")),
    Case("ulysses", over_ranks,
         lambda comm, size: support().library_ulysses(comm, *tokens(comm, size)), SOME, 1e-14),
]


def check_change(names):
    """Right for the scores of the lesson; no number if a later block's are larger by far."""
    def body(comm, scale):
        q, k, v, positions = tokens(comm, 4)
        with np.errstate(over="ignore", invalid="ignore"):
            found = names["ring_attention"](comm, scale * q, k, v, positions)
        return np.abs(found - support().library_ring(comm, scale * q, k, v, positions))
    for scale, is_right in ((1, True), (100, True), (1e4, False)):
        off = np.concatenate(Cluster(4).run(lambda comm, scale=scale: body(comm, scale))[0])
        assert np.all(off < 1e-12) if is_right else np.any(np.isnan(off))
    assert np.isfinite(np.exp(709.0)) and np.isfinite(np.exp(np.float32(88.7)))
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(710.0)) and np.isinf(np.exp(np.float32(89)))
    says("16", "Not in this lesson", "by more than 709", "a difference of 89 is enough")
