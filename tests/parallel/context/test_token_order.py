"""The tokens of each rank, the pairs that they make, and the tiles that are computed."""

import numpy as np
import pytest

from minipar.parallel.context.mask import AttentionMask
from minipar.parallel.context.token_order import ORDERS, positions_of_ranks, sorting
from minipar.parallel.cost.context_parallel import computed_pairs, imbalance, pairs_by_hop

# order, tokens, ranks: the positions of each rank, one rank after the other
KNOWN = {
    ("zigzag", 23, 4): [0, 1, 2, 21, 22, 3, 4, 5, 18, 19, 20, 6, 7, 8, 15, 16, 17, 9, 10, 11, 12,
                        13, 14],
    ("zigzag", 8, 2): [0, 1, 6, 7, 2, 3, 4, 5],
    ("striped", 7, 3): [0, 3, 6, 1, 4, 2, 5],
    ("contiguous", 7, 3): [0, 1, 2, 3, 4, 5, 6],
}
# visible pairs [rank, hop]
PAIRS = {
    ("contiguous", 23, 4): [[21, 0, 0, 0], [21, 36, 0, 0], [21, 36, 36, 0], [15, 30, 30, 30]],
    ("zigzag", 23, 4): [[15, 12, 12, 12], [21, 18, 18, 18], [21, 18, 18, 18], [21, 18, 18, 18]],
    ("striped", 23, 4): [[21, 15, 15, 15], [21, 21, 15, 15], [21, 21, 21, 15], [15, 15, 15, 15]],
    ("zigzag", 23, 3): [[28, 24, 24], [36, 32, 32], [36, 32, 32]],
}


@pytest.mark.parametrize("order, length, p", KNOWN)
def test_known_orders(order, length, p):
    positions = positions_of_ranks(order, length, p)
    assert np.concatenate(positions).tolist() == KNOWN[order, length, p]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("length", [1, 2, 7, 24])
@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_every_token_is_on_one_rank(order, length, p):
    positions = positions_of_ranks(order, length, p)
    together = np.concatenate(positions)
    assert together[sorting(positions)].tolist() == list(range(length))
    assert all((np.diff(each) > 0).all() for each in positions)


@pytest.mark.parametrize("order, length, p", PAIRS)
def test_known_pairs(order, length, p):
    positions = positions_of_ranks(order, length, p)
    assert pairs_by_hop(positions).tolist() == PAIRS[order, length, p]
    mask = AttentionMask()
    assert [[int(mask.visible(positions[r], positions[(r - i) % p]).sum()) for i in range(p)]
            for r in range(p)] == PAIRS[order, length, p]


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_zigzag_is_balanced_and_contiguous_is_not(p):
    c = 10
    pairs = pairs_by_hop(positions_of_ranks("zigzag", 2 * p * c, p))
    assert (pairs[:, 0] == c * (2 * c + 1)).all() and (pairs[:, 1:] == 2 * c * c).all()
    assert imbalance(pairs) == 1
    long = pairs_by_hop(positions_of_ranks("contiguous", 400 * p, p))
    assert imbalance(long) == pytest.approx((2 * p - 1) / p, rel=2e-3)


def computed(order, length, p):
    mask, positions = AttentionMask(), positions_of_ranks(order, length, p)
    return [[sum((tile.rows.stop - tile.rows.start) * tile.num_keys
                 for tile in mask.tiles(positions[r], positions[(r - i) % p]))
             for i in range(p)] for r in range(p)]


@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
@pytest.mark.parametrize("length, p", [(24, 1), (24, 2), (23, 3), (512, 4), (150, 2), (3, 4)])
def test_the_computed_pairs_are_those_of_the_formula(order, length, p):
    assert computed_pairs(order, length, p).tolist() == computed(order, length, p)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_only_the_own_block_needs_a_mask_in_zigzag_order(p):
    c = 8
    positions = positions_of_ranks("zigzag", 2 * p * c, p)
    for r in range(p):
        for j in set(range(p)) - {r}:
            tiles = [*AttentionMask().tiles(positions[r], positions[j])]
            assert all(tile.hidden is None for tile in tiles)
            rows = [i for tile in tiles for i in range(2 * c)[tile.rows]]
            if j < r:           # all queries × the first piece
                assert rows == [*range(2 * c)] and {tile.num_keys for tile in tiles} == {c}
            else:               # the second piece × all keys
                assert rows == [*range(c, 2 * c)] and {tile.num_keys for tile in tiles} == {2 * c}


def test_tiles_hide_exactly_what_is_not_seen():
    mask = AttentionMask(documents=np.repeat([0, 1, 2], [5, 9, 10]), lengths=np.array([24, 11]))
    positions = positions_of_ranks("zigzag", 24, 2)
    for queries in positions:
        for keys in positions:
            found = np.zeros((2, len(queries), len(keys)), bool)
            for tile in mask.tiles(queries, keys):
                hidden = np.zeros((2, tile.rows.stop - tile.rows.start, tile.num_keys), bool)
                if tile.hidden is not None:
                    hidden[..., tile.num_keys - tile.hidden.shape[-1]:] = tile.hidden
                found[:, tile.rows, :tile.num_keys] = ~hidden
            assert (found == mask.visible(queries, keys)).all()


def test_an_unknown_order():
    with pytest.raises(ValueError, match="unknown order of tokens 'shuffled': choose from zigzag"):
        positions_of_ranks("shuffled", 8, 2)
