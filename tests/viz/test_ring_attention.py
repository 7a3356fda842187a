"""The table of ring attention: cells, and the bars of the pairs of each rank."""

import numpy as np
import pytest

from minipar.parallel.context.token_order import positions_of_ranks
from minipar.parallel.cost.context_parallel import pairs_by_hop
from minipar.viz import draw_ring_attention
from minipar.viz.grids.ring_attention import visible_pairs
from tests.viz.test_sharded_pictures import saved  # noqa: F401 (a fixture)


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("length, p", [(23, 4), (3, 4), (16, 1)])
def test_the_pairs_are_those_of_the_formula(order, length, p):
    positions = positions_of_ranks(order, length, p)
    assert visible_pairs(positions).tolist() == pairs_by_hop(positions).tolist()


@pytest.mark.parametrize("p", [2, 4, 6])
@pytest.mark.one_in(3)
def test_bars_and_cells(tmp_path, saved, p):  # noqa: F811
    orders = {name: positions_of_ranks(name, 8 * p, p) for name in ("contiguous", "zigzag")}
    path = draw_ring_attention(tmp_path / "ring.png", orders, "a ring")
    assert path.read_bytes().startswith(b"\x89PNG")
    shown = min(p, 4)
    cells = [axes.images[0] for axes in saved[0].axes if axes.images]
    assert len(cells) == 2 * shown**2
    bars = [[bar.get_width() for bar in axes.containers[0]]
            for axes in saved[0].axes if axes.containers]
    assert bars == [pairs_by_hop(positions).sum(axis=1)[:shown].tolist()
                    for positions in orders.values()]
    scales = {axes.get_xlim() for axes in saved[0].axes if axes.containers}
    assert len(scales) == 1
    contiguous, zigzag = saved[0].subfigs
    assert zigzag.get_suptitle() == "zigzag: the busiest rank has 1.00 times the mean"
    assert ("the first 4 of 6 ranks" in saved[0].get_supxlabel()) == (p == 6)
    assert np.array_equal(cells[0].get_array(), np.tri(8))      # rank 0 with its own block


def test_different_numbers_of_ranks_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the orders are of \[2, 3\] ranks: give the same number"):
        draw_ring_attention(tmp_path / "ring.png", {"a": positions_of_ranks("zigzag", 8, 2),
                                                    "b": positions_of_ranks("zigzag", 8, 3)})
