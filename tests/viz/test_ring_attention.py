"""The table of ring attention: cells, and the bars of the pairs of each rank."""

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from minipar.formulas.context_parallel import pairs_by_hop
from minipar.parallel.context.token_order import positions_of_ranks
from minipar.viz import draw_ring_attention
from minipar.viz.ring_attention import BARS, visible_pairs
from tests.viz.test_sharded_pictures import saved  # noqa: F401 (a fixture)


@pytest.mark.parametrize("order", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("length, p", [(23, 4), (3, 4), (16, 1)])
def test_the_pairs_are_those_of_the_formula(order, length, p):
    positions = positions_of_ranks(order, length, p)
    assert visible_pairs(positions).tolist() == pairs_by_hop(positions).tolist()


@pytest.mark.parametrize("p", [2, 4, 6])
def test_bars_and_cells(tmp_path, saved, p):  # noqa: F811
    orders = {name: positions_of_ranks(name, 8 * p, p) for name in ("contiguous", "zigzag")}
    path = draw_ring_attention(tmp_path / "ring.png", orders, "a ring")
    assert path.read_bytes().startswith(b"\x89PNG")
    (axes,) = saved[0].axes
    shown = min(p, 4)
    assert len(axes.images) == 2 * shown**2
    sums = {name: pairs_by_hop(positions).sum(axis=1) for name, positions in orders.items()}
    longest = max(each.max() for each in sums.values())
    bars = {patch.get_gid(): patch.get_width() for patch in axes.patches
            if isinstance(patch, Rectangle) and patch.get_gid()}
    assert bars == {f"{name} {r}": pytest.approx(BARS * sums[name][r] / longest)
                    for name in orders for r in range(shown)}
    texts = {text.get_text() for text in axes.texts}
    assert "zigzag: the busiest rank has 1.00 times the mean" in texts
    assert any("the first 4 of 6 ranks" in text for text in texts) == (p == 6)
    seen = np.array(axes.images[0].get_array())         # rank 0 with its own block
    assert len(np.unique(seen[np.tril_indices(8)], axis=0)) == 1


def test_different_numbers_of_ranks_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the orders are of \[2, 3\] ranks: give the same number"):
        draw_ring_attention(tmp_path / "ring.png", {"a": positions_of_ranks("zigzag", 8, 2),
                                                    "b": positions_of_ranks("zigzag", 8, 3)})
