"""Pictures of narrow numbers: what is drawn, and what they refuse."""

import numpy as np
import pytest

from minipar.number_formats import BFLOAT16, FLOAT16
from minipar.viz import draw_precision

GRADIENTS = {"as they are": np.float32(2.0) ** np.arange(-30, -10)}
DRIFT = {"master": [1, 1.5, 2], "narrow": [1, 1, 1]}


def test_formats_gradients_and_drift_are_written(tmp_path):
    path = draw_precision(tmp_path / "x.png", [FLOAT16, BFLOAT16], GRADIENTS, DRIFT, "title")
    assert path.read_bytes().startswith(b"\x89PNG") and list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match="at least one format"):
        draw_precision(path, [], GRADIENTS, DRIFT)
