"""The picture of error feedback: what is drawn, and what it refuses."""

import pytest

from minipar.viz import draw_error_feedback, error_feedback


def test_sums_and_losses_are_drawn(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(error_feedback, "save", lambda figure, path: drawn.append(figure) or path)
    draw_error_feedback(tmp_path / "x.png", {"exact": [1, 2, 3], "rounded": [0, 0, 0]},
                  {"int8": [0.5, 0.1], "int4": [2.0, 3.0]}, "title", "0.001")
    left, right = drawn[0].axes
    assert [t.get_text() for t in left.get_legend().get_texts()] == ["exact", "rounded"]
    assert [t.get_text() for t in right.get_yticklabels()] == ["int8", "int4"]
    with pytest.raises(ValueError, match="at least one way"):
        draw_error_feedback(tmp_path / "x.png", {}, {"int8": [1.0]})


def test_it_is_written_whole(tmp_path):
    path = draw_error_feedback(tmp_path / "x.png", {"exact": [1]}, {"int8": [0.5]})
    assert path.read_bytes().startswith(b"\x89PNG") and list(tmp_path.iterdir()) == [path]
