"""Number lines: every number is drawn once, in the colour of its kind."""

import numpy as np
import pytest

from minipar.number_formats import BFLOAT16, FLOAT4_E2M1, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16
from minipar.viz import draw_number_lines, number_line


def test_what_is_drawn_are_the_numbers():
    subnormal, normal = number_line.powers_of(FLOAT4_E2M1)
    assert (2**subnormal).tolist() == [0.5]
    assert np.allclose(2**normal, [1, 1.5, 2, 3, 4, 6])
    subnormal, normal = number_line.powers_of(FLOAT8_E4M3FN)
    assert (subnormal.size, normal.size) == (7, 15 * 8 - 1) and normal[-1] == np.log2(448)
    assert number_line.powers_of(FLOAT8_E5M2)[1].size == 30 * 4         # infinity is none of them


def test_a_line_for_each_format(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(number_line, "save", lambda figure, path: drawn.append(figure) or path)
    draw_number_lines(tmp_path / "x.png", [FLOAT8_E5M2, FLOAT4_E2M1, BFLOAT16], "", (2**-20, 2**10))
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "float8_e5m2", "float4_e2m1", "bfloat16"]
    beyond = [text.get_text() for text in axes.texts if "$" in text.get_text()]
    assert beyond == ["$2^{16}$ →", "← $2^{-133}$", "$2^{128}$ →"]


def test_it_is_written(tmp_path):
    path = draw_number_lines(tmp_path / "x.png", [FLOAT16, FLOAT8_E4M3FN])
    assert path.read_bytes().startswith(b"\x89PNG") and list(tmp_path.iterdir()) == [path]


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no formats to draw"):
        draw_number_lines(tmp_path / "x.png", [])
    with pytest.raises(ValueError, match="0 < low < high were expected, not between=\\(2, 1\\)"):
        draw_number_lines(tmp_path / "x.png", [FLOAT16], between=(2, 1))
