"""The picture of tokens that flow to experts: every row is drawn, what does not fit is refused."""

import numpy as np
import pytest

from minipar.viz import draw_token_flow


def test_it_is_written(tmp_path):
    sent = np.array([[3, 0, 2], [1, 4, 0]])
    for dropped in (np.array([0, 2]), np.zeros(2, int)):
        path = draw_token_flow(tmp_path / "flow.png", sent, dropped, [(0, 2), (2, 3)], "two ranks")
        assert path.stat().st_size > 1000
    draw_token_flow(tmp_path / "none.png", 0 * sent, np.zeros(2, int), [(0, 2), (2, 3)])


@pytest.mark.parametrize("dropped, bounds", [([0], [(0, 2), (2, 3)]), ([0, 0], [(0, 2)]),
                                             ([0, 0], [(0, 1), (1, 2)])])
def test_what_does_not_fit_is_refused(tmp_path, dropped, bounds):
    with pytest.raises(ValueError, match="rows from 2 ranks to 3 experts"):
        draw_token_flow(tmp_path / "flow.png", np.ones((2, 3), int), np.array(dropped), bounds)
